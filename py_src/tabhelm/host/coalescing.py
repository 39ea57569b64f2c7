"""Many changes, few messages: what a page is told of things that change often."""

from __future__ import annotations

from collections.abc import Callable

from tabhelm.ports import Clock, Timer

COALESCE = 0.05
"""Seconds in which changes of roster or queue become one message to the page."""


class Coalescer:
    """Says each thing soon after it changed: the first time after ``COALESCE`` seconds, and then at most once in
    ``every``. Whatever changed last is always said."""

    def __init__(self, clock: Clock, every: float = COALESCE) -> None:
        self._clock = clock
        self._every = every
        self._timers: dict[str, Timer] = {}
        self._said: dict[str, float] = {}
        """When each was said last."""

    def soon(self, what: str, say: Callable[[], None]) -> None:
        """``what`` has changed: call ``say`` in a moment, if that is not to be done already."""
        if what in self._timers:
            return

        def due() -> None:
            del self._timers[what]
            self._said[what] = self._clock.monotonic()
            say()

        next_time = self._said[what] + self._every - self._clock.monotonic() if what in self._said else 0.0
        self._timers[what] = self._clock.call_later(max(COALESCE, next_time), due)

    def end(self) -> None:
        """Say nothing more of what changed so far."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
