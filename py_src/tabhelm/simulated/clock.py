"""The clock port: every agent has its own offset, speed and wall time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tabhelm.simulated.world import SimulatedAgent

EPOCH = 1_790_000_000.0
"""The virtual wall time at which every world begins (seconds since the Unix epoch)."""


class SimulatedTimer:
    """A timer that can be taken back."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        self._cancel()


class SimulatedClock:
    """``offset`` and ``rate`` make clocks differ; ``wall_offset`` may be changed at any time (a wall clock jump)."""

    def __init__(self, agent: SimulatedAgent, *, offset: float = 0.0, rate: float = 1.0) -> None:
        self._agent = agent
        self._loop = agent.loop
        self._offset = offset
        self._rate = rate
        self.wall_offset = 0.0
        self.throttled = False
        """A hidden page's timers fire once in ``throttle`` seconds at most."""
        self.throttle = 1.0

    def monotonic(self) -> float:
        return self._offset + self._loop.time() * self._rate

    def wall(self) -> float:
        return EPOCH + self._loop.time() + self.wall_offset

    def call_later(self, delay: float, callback: Callable[[], None]) -> SimulatedTimer:
        due = self._loop.time() + max(0.0, delay) / self._rate
        if self.throttled:
            due = math.ceil(due / self.throttle) * self.throttle
        handle = self._loop.call_at(due, callback, context=self._agent.context())
        return SimulatedTimer(handle.cancel)

    async def sleep(self, delay: float) -> None:
        future = self._loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        timer = self.call_later(delay, wake)
        try:
            await future
        finally:
            timer.cancel()
