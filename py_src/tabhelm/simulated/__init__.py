"""A browser simulated with virtual time and seeded faults, in which the real core runs on plain CPython."""

from __future__ import annotations

from tabhelm.simulated.faults import Faults
from tabhelm.simulated.http import HttpRequest, NextAnswer
from tabhelm.simulated.loop import (
    Agent,
    SimulatedLoop,
    SimulationError,
    SimulationLivelock,
    SimulationStalled,
    SimulationTimeout,
)
from tabhelm.simulated.world import Process, SimulatedAgent, World

__all__ = [
    "Agent",
    "Faults",
    "HttpRequest",
    "NextAnswer",
    "Process",
    "SimulatedAgent",
    "SimulatedLoop",
    "SimulationError",
    "SimulationLivelock",
    "SimulationStalled",
    "SimulationTimeout",
    "World",
]
