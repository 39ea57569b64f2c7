"""A browser simulated with virtual time and seeded faults, in which the real core runs on plain CPython."""

from __future__ import annotations

from tabhelm.simulated.asgi import asgi_handler
from tabhelm.simulated.browser import SimulatedBrowser
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
from tabhelm.simulated.page import SimulatedPage
from tabhelm.simulated.pagelink import Settings
from tabhelm.simulated.pagequeue import PageQueue
from tabhelm.simulated.pagework import PageContext, PageElection
from tabhelm.simulated.receiver import Effect, RememberingGuard, SimulatedReceiver
from tabhelm.simulated.world import Process, SimulatedAgent, World

__all__ = [
    "Agent",
    "Effect",
    "Faults",
    "HttpRequest",
    "NextAnswer",
    "PageContext",
    "PageElection",
    "PageQueue",
    "Process",
    "RememberingGuard",
    "Settings",
    "SimulatedAgent",
    "SimulatedBrowser",
    "SimulatedLoop",
    "SimulatedPage",
    "SimulatedReceiver",
    "SimulationError",
    "SimulationLivelock",
    "SimulationStalled",
    "SimulationTimeout",
    "World",
    "asgi_handler",
]
