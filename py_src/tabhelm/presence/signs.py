"""When was each resource's leader last seen to be alive? What a takeover by force is decided by.

A sign of life is a leader's own word, sent by its own timer: not an answer, for in a frozen page handlers run and
answer while nothing else does. Silence is counted only over time in which we ourselves ran: what was said while we
stood still waits in our queues, or was never said because the whole device slept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TICK = 2.5
"""Seconds between two looks at the clock; a longer gap than two of them means that we ourselves stood still."""
THROTTLED_CREDIT = 20.0
"""Seconds that a gap counts for in a hidden page, whose timers may fire once a minute only, while messages come in
time. Not the whole gap, since it may have been the device that slept."""
MOST = 4096
"""So many resources are remembered: strangers shall not fill our memory with names."""


@dataclass(frozen=True, slots=True)
class Sign:
    """``at`` is in waking time; ``beat`` when its sender meant to speak again, in seconds; ``sender`` is an engine.

    ``leads``: somebody led then. Else somebody just stopped: whoever holds the lock now is only beginning.
    """

    at: float
    beat: float
    leads: bool
    sender: str


class Signs:
    """The last sign of each resource, and the observer's waking time."""

    def __init__(self) -> None:
        self._last: dict[str, Sign] = {}
        self._ticked: float | None = None
        self._asleep = 0.0
        self.throttled = False
        """Whether our own timers may be throttled to one a minute."""

    def awake(self, now: float) -> float:
        """The seconds in which we ran until ``now``, from some beginning on."""
        return now - self._asleep - self._slept(now)

    def tick(self, now: float) -> float:
        """Look at the clock; the seconds in which we stood still since the last look."""
        self._asleep += self._slept(now)
        gap = 0.0 if self._ticked is None else now - self._ticked - TICK
        self._ticked = now
        return gap if gap > TICK else 0.0

    def _slept(self, now: float) -> float:
        # Also before the tick that finds it out: after a thaw, some other timer may be the first to fire.
        passed = 0.0 if self._ticked is None else now - self._ticked
        credit = THROTTLED_CREDIT if self.throttled else TICK
        return max(0.0, passed - credit) if passed > 2 * TICK else 0.0

    def lives(self, resources: Iterable[str], beat: float, now: float, sender: str) -> None:
        """The sender leads these, and says so itself."""
        for resource in resources:
            self._note(resource, Sign(self.awake(now), beat, True, sender))

    def went(self, resources: Iterable[str], now: float, sender: str) -> None:
        """The sender, who led these, stopped, and said so, or is known to be dead: another one's turn has begun."""
        at = self.awake(now)
        for resource in resources:
            last = self._last.get(resource)
            # Who was robbed may hear of it, or die, long after its successor spoke: that one's word stands, for as
            # long as it can be believed.
            if last is None or last.sender == sender or not last.leads or at - last.at > 2 * last.beat:
                self._note(resource, Sign(at, 0.0, False, sender))

    def granted(self, resource: str, now: float, sender: str) -> None:
        """The sender has the lock, so nobody else leads: its turn has begun."""
        self._note(resource, Sign(self.awake(now), 0.0, False, sender))

    def last(self, resource: str) -> Sign | None:
        return self._last.get(resource)

    def _note(self, resource: str, sign: Sign) -> None:
        self._last.pop(resource, None)
        self._last[resource] = sign
        if len(self._last) > MOST:
            del self._last[next(iter(self._last))]
