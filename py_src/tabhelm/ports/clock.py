"""Time, as one context sees it. Two contexts' clocks are never compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None:
        """Take the timer back; harmless when it has fired or was cancelled."""


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds on this context's own clock, never going back. May leap forward over a freeze."""

    def wall(self) -> float:
        """Seconds since the Unix epoch. Jumps; for display and for ages of stored records, never for ordering."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call back after ``delay`` seconds (at least; late when the context was throttled, frozen or hung)."""

    async def sleep(self, delay: float) -> None:
        """Wait ``delay`` seconds; cancelling it removes the timer."""
