"""Did we stand still? A page that hung, or was stopped without an event, finds out only when it goes on.

Nobody pings a page that runs its own engine, so it watches its own timer. Between two beats nothing else may have run;
whoever is about to rely on leadership asks ``stood_still`` first, for the loop may wake before the timer does.
"""

from __future__ import annotations

from collections.abc import Callable

from tabhelm.ports import Clock, Timer

BEATS = 4
"""Beats in the time that may pass."""


class Stillness:
    """Calls ``stopped`` once when more than ``limit()`` seconds passed between two beats (inside whatever noticed it),
    and ``going`` when they come in time again."""

    def __init__(
        self,
        clock: Clock,
        beat: float,
        limit: Callable[[], float],
        stopped: Callable[[], None],
        going: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._beat = beat
        self._limit = limit
        self._stopped = stopped
        self._going = going
        self._last = clock.monotonic()
        self._timer: Timer | None = None
        self.noticed = False
        """Whether the last thing that happened was a standstill."""

    def start(self) -> None:
        """Watch from now on; what was before is forgotten."""
        self.stop()
        self._last = self._clock.monotonic()
        self.noticed = False
        self._timer = self._clock.call_later(self._beat, self._due)

    def stop(self) -> None:
        """Watch no more; harmless when stopped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stood_still(self) -> bool:
        """Judge by the time since the last beat, which stays as it is: a loop that asks is no beat."""
        if self._timer is not None and not self.noticed and self._clock.monotonic() - self._last > self._limit():
            self.noticed = True
            self._stopped()
        return self.noticed

    def beat(self) -> None:
        """We are running: a timer fired, or the browser told us something."""
        if self._timer is None:
            return
        late = self._clock.monotonic() - self._last > self._limit()
        self._last, before = self._clock.monotonic(), self.noticed
        if late and not before:
            self.noticed = True
            self._stopped()
        elif before and not late:
            self.noticed = False
            self._going()

    def _due(self) -> None:
        self._timer = self._clock.call_later(self._beat, self._due)
        self.beat()
