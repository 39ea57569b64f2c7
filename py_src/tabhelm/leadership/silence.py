"""How long a standby has waited behind a holder that gives no sign of life, and when that is long enough.

A hung or stopped leader keeps its lock for ever. After a silence it is replaced by force, which is only safe because
its late writes are refused, and only decent because a leader that lives is never silent for so long.
"""

from __future__ import annotations

from tabhelm.election import Takeover
from tabhelm.ports import Clock
from tabhelm.presence import Roster

BEGINNING = 25.0
"""Seconds that a holder may need until it leads, and can say so: acknowledgement, epoch and barrier, each within its
limit."""
THROTTLED = 60.0
"""A hidden page's timers may fire once a minute: it has proved nothing in less than three of them."""
STAGGER = BEGINNING
"""Seconds, times place: who takes over first says so only when it leads, and is not to be robbed while it begins."""


class Silence:
    """Begins when a standby begins to ask. Measured in the observer's own waking time.

    ``grace``: seconds for which a leader that said that it stops may still hold the lock.
    """

    def __init__(self, roster: Roster, resource: str, takeover: Takeover, grace: float, clock: Clock) -> None:
        self._roster = roster
        self._resource = resource
        self._takeover = takeover
        self._grace = grace
        self._clock = clock
        self._begun = roster.signs.awake(clock.monotonic())

    def lasted(self) -> float:
        """Seconds without any sign of life."""
        now = self._clock.monotonic()
        sign = self._roster.sign(self._resource, now)
        return self._roster.signs.awake(now) - (self._begun if sign is None else max(self._begun, sign.at))

    def left(self, place: int) -> float | None:
        """Seconds until the standby at this place may take over; ``None``: never."""
        if self._takeover.after is None:
            return None
        limit = self._takeover.after
        sign = self._roster.sign(self._resource, self._clock.monotonic())
        if sign is None or not sign.leads:
            limit = max(limit, BEGINNING + self._grace)  # no leader is silent, but perhaps one ends, and one begins
        else:
            limit = max(limit, 2 * sign.beat)  # late by its own word, and not by ours
        if self._roster.throttled:
            limit = max(limit, THROTTLED)
        return max(0.0, limit + STAGGER * place - self.lasted())
