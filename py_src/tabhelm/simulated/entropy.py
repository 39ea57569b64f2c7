"""The entropy port: seeded per agent, so that a history replays."""

from __future__ import annotations

from random import Random


class SimulatedEntropy:
    """Draws from the agent's own stream; no two agents share one."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def token_bytes(self, count: int) -> bytes:
        return self._rng.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._rng.uniform(low, high)
