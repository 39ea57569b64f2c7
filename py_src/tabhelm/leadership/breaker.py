"""Is it worth asking that dependency again? A circuit breaker for the calls that a leader makes.

*Closed*, calls go through. After some failures in a row it is *open*: calls are refused at once, which spares a sick
service and does not hold up the loop. After a while it is *half-open*: one call is tried, and decides. A leader whose
circuit stays open, or opens again and again, cannot do its job, and resigns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from tabhelm.errors import CircuitOpen
from tabhelm.ports import Clock, Timer

T = TypeVar("T")
Circuit = Literal["closed", "open", "half-open"]
OPEN_FOR = 10.0
TRIAL = 1.0
"""Seconds at most after which to ask again while a trial is under way: nobody knows when it will end."""


class CircuitBreaker:
    """``await breaker.call(function)``. An exception is a failure, cancellation says nothing. Times in seconds."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        failures: int = 5,
        open_for: float = OPEN_FOR,
        resign_after: float | None = None,
        resign_opens: int | None = None,
        resign: Callable[[], None] = lambda: None,
    ) -> None:
        if failures < 1 or not open_for > 0:
            raise ValueError(f"circuit {name!r}: failures {failures!r} and open_for {open_for!r} must be positive")
        self.name = name
        self.opened = 0
        """How often it opened after it had been closed."""
        self._clock = clock
        self._failures = failures
        self._open_for = open_for
        self._resign_after = resign_after
        self._resign_opens = resign_opens
        self._resign = resign
        self._failed = 0
        self._try_at: float | None = None
        self._trying = False
        self._over = False
        self._patience: Timer | None = None

    @property
    def state(self) -> Circuit:
        """What a call would meet now."""
        if self._try_at is None:
            return "closed"
        return "half-open" if self._trying or self._clock.monotonic() >= self._try_at else "open"

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await ``function()`` if the circuit lets it.

        Raises:
            CircuitOpen: it was not called.
            Exception: whatever it raises.
        """
        trial = self._try_at is not None
        if self._try_at is not None:
            left = self._try_at - self._clock.monotonic()
            if self._trying or left > 0:
                raise CircuitOpen(self.name, min(self._open_for, TRIAL) if self._trying else left)
            self._trying = True
        try:
            answer = await function()
        except Exception:
            self._failure(trial)
            raise
        finally:
            if trial:
                self._trying = False
        if trial or self._try_at is None:
            self._succeeded()  # one that began before it opened, and ends after, proves nothing
        return answer

    def close(self) -> None:
        """Nothing is due any more: its tenure is over."""
        self._over = True
        self._forget()

    def _forget(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _succeeded(self) -> None:
        self._failed = 0
        self._try_at = None
        self._forget()

    def _failure(self, trial: bool) -> None:
        if trial:
            self._try_at = self._clock.monotonic() + self._open_for
        elif self._try_at is None:
            self._failed += 1
            if self._failed >= self._failures:
                self._open()

    def _open(self) -> None:
        self._try_at = self._clock.monotonic() + self._open_for
        self.opened += 1
        if self._over:
            return
        if self._resign_opens is not None and self.opened >= self._resign_opens:
            self._resign()
        elif self._resign_after is not None:
            self._patience = self._clock.call_later(self._resign_after, self._resign)
