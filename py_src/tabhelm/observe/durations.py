"""How long did it take? Counted in classes that are the same everywhere, so that figures of many tabs can be added."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BOUNDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3600.0)
"""Upper bounds of the classes, in seconds; what is longer has a class of its own."""


@dataclass(frozen=True, slots=True)
class Durations:
    """In seconds. ``classes`` has one count for each of ``BOUNDS``, and one for what was longer."""

    count: int
    sum: float
    longest: float
    classes: tuple[int, ...]


class DurationCounter:
    """Adds up."""

    def __init__(self) -> None:
        self._classes = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0
        self._longest = 0.0

    def add(self, seconds: float) -> None:
        self._classes[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds
        self._longest = max(self._longest, seconds)

    def snapshot(self) -> Durations:
        return Durations(sum(self._classes), self._sum, self._longest, tuple(self._classes))
