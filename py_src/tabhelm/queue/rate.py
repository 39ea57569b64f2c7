"""How fast a queue is emptied, by whomever: from how its number of done operations grows while one looks at it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tabhelm.queue.totals import Totals

WINDOW = 10.0
"""Seconds that a rate is taken over."""
_STEP = 0.25
"""Seconds whose changes are kept as one, so that many take no more memory than few."""


@dataclass(slots=True)
class _Growth:
    """So many more were done in this time."""

    since: float
    at: float
    count: int


class Rate:
    """All that is known are looks: what was done between two of them counts as done evenly in that time."""

    def __init__(self) -> None:
        self._born = ""
        self._looked: tuple[float, int] | None = None
        """When, and how many were done by then."""
        self._grown: deque[_Growth] = deque()

    def saw(self, now: float, totals: Totals) -> None:
        """The queue stands so."""
        if self._born and totals.born != self._born:  # the storage was deleted: another queue
            self._looked = None
        self._born = totals.born
        while self._grown and self._grown[0].at <= now - WINDOW:
            self._grown.popleft()
        if self._looked is None:
            self._looked = now, totals.done
            return
        since, done = self._looked
        self._looked = now, max(done, totals.done)  # fewer: an older look that comes later
        if totals.done <= done:
            return
        last = self._grown[-1] if self._grown else None
        if last is not None and now - last.since <= _STEP:
            last.at, last.count = now, last.count + totals.done - done
        else:
            self._grown.append(_Growth(since, now, totals.done - done))

    def per_second(self, now: float) -> float:
        """Over the ``WINDOW`` up to now."""
        return sum(_within(each, now - WINDOW) for each in self._grown) / WINDOW


def _within(growth: _Growth, since: float) -> float:
    if growth.since >= since:
        return growth.count
    return growth.count * max(0.0, growth.at - since) / (growth.at - growth.since)
