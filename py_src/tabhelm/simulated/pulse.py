"""A model of ``web/pulse.mjs``: whether a page is still there, as its engine sees it."""

from __future__ import annotations

from collections.abc import Callable

from tabhelm.ports import Clock, Timer

PINGS_AHEAD = 8
"""When so many pings are unanswered, only one in so many is still sent."""
Patience = Callable[[float, float], float]
"""How long a page may be late, by its limit and since when (seconds of its own clock): browsers hold back timers."""


class Pulse:
    """``stall_after`` in seconds; ``at`` by the page's own clock, in milliseconds. ``ping(n, heard)``, ``stalled()``
    and ``answering()`` are what it does to the page and tells of it. ``patience``: the engine runs in the page
    itself."""

    def __init__(
        self,
        clock: Clock,
        stall_after: float,
        at: float,
        *,
        ping: Callable[[int, float], None],
        stalled: Callable[[], None],
        answering: Callable[[], None],
        patience: Patience | None,
    ) -> None:
        self._clock = clock
        self._stall_after = stall_after
        self._ping = ping
        self._tell_stalled = stalled
        self._tell_answering = answering
        self._patience = patience
        self.heard = at
        self._heard_at = clock.monotonic()
        self._stalled = False
        self._ticks = self._n = self._answered = 0
        self._pings: Timer | None = None
        self._timer: Timer | None = None

    def start(self) -> None:
        self.stop()
        self._ping_later()
        self._await(self._stall_after)

    def stop(self) -> None:
        for timer in (self._pings, self._timer):
            if timer is not None:
                timer.cancel()

    def ping(self) -> None:
        self._ticks += 1
        if self._n - self._answered >= PINGS_AHEAD and self._ticks % PINGS_AHEAD:
            return
        self._n += 1
        self._ping(self._n, self.heard)

    def pong(self, n: int) -> bool:
        """Ping ``n`` has been answered; whether it was waited for."""
        if not self._answered < n <= self._n:
            return False
        self._answered = n
        return True

    def resume(self, at: float) -> None:
        """The page is back from where it could not answer."""
        self._answered = self._n
        self._heard_at = self._clock.monotonic()
        self.hear(at)

    def hear(self, at: float) -> None:
        """The page has said something."""
        if self._patience is not None and self._left() < 0:
            # We stood still together with the page, and nobody asked meanwhile.
            self._stall()
        self.heard = at
        self._heard_at = self._clock.monotonic()
        if self._stalled:
            self._stalled = False
            self._tell_answering()
            self.ping()
            self._await(self._stall_after)

    def _ping_later(self) -> None:
        self._pings = self._clock.call_later(self._stall_after / 4, self._ping_again)

    def _ping_again(self) -> None:
        self._ping_later()
        self.ping()

    def _await(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._clock.monotonic() + delay
        self._timer = self._clock.call_later(delay, lambda: self._due(due))

    def _due(self, due: float) -> None:
        now = self._clock.monotonic()
        pause = self._stall_after / 4
        if self._patience is None and now - due > pause:
            # We ourselves stood still: the page is judged after one more ping.
            self.ping()
            self._await(pause)
            return
        left = self._left()
        if left > 1e-9:
            self._await(left)
        else:
            self._stall()

    def _left(self) -> float:
        limit = self._stall_after if self._patience is None else self._patience(self._stall_after, self._heard_at)
        return self._heard_at + limit - self._clock.monotonic()

    def _stall(self) -> None:
        if not self._stalled:
            self._stalled = True
            self._tell_stalled()
