"""A row of the benchmark: ours and the other's figures, taken by turns, and what they are to each other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """Median, lowest and highest of some rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        return cls(*(round(value, 3) for value in (statistics.median(values), min(values), max(values))))


@dataclass(frozen=True, slots=True)
class Row:
    """``ratio`` is that of each round's pair: what slows the machine down slows down both. ``unit``: ``ms`` (less is
    better) or ``ops/s``. ``at_most`` and ``at_least`` are goals for the ratio's median."""

    name: str
    other: str
    unit: str
    ours: Figure
    others: Figure
    ratio: Figure
    rounds: int
    at_most: float | None = None
    at_least: float | None = None

    @classmethod
    def of(
        cls,
        name: str,
        ours: Sequence[float],
        others: Sequence[float],
        *,
        other: str = "raw",
        unit: str = "ms",
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> Row:
        """Pair the rounds; where the other has fewer, its last ones are used again."""
        pairs = [(one, others[min(number, len(others) - 1)]) for number, one in enumerate(ours)]
        ratio = Figure.of([one / two for one, two in pairs])
        return cls(name, other, unit, Figure.of(ours), Figure.of(others), ratio, len(ours), at_most, at_least)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; ``None`` without one."""
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_most is None or self.ratio.median <= self.at_most) and (
            self.at_least is None or self.ratio.median >= self.at_least
        )

    @property
    def goal(self) -> str:
        """The goal in words; empty without one."""
        goals = [f"≥ {self.at_least:g}"] if self.at_least is not None else []
        goals += [f"≤ {self.at_most:g}"] if self.at_most is not None else []
        return " and ".join(goals)

    def __str__(self) -> str:
        goal = f"  goal {self.goal}: {'met' if self.met else 'MISSED'}" if self.goal else ""
        spread = f"({self.ratio.low:.2f}–{self.ratio.high:.2f})"
        return (
            f"  {self.name:44} {_number(self.ours.median):>9} {_number(self.others.median):>9} {self.unit:6}"
            f"{self.other:26} {self.ratio.median:7.2f} {spread:15}{goal}"
        )


HEAD = f"  {'':44} {'tabhelm':>9} {'other':>9} {'':6}{'other':26} {'ratio':>7} {'of each pair':15}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
