"""What a lease service counts, for each resource."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypedDict, get_args

LeaseCount = Literal[
    "granted", "taken-over", "renewed", "refused", "released",
    "malformed", "denied", "busy", "failed",
]  # fmt: skip
_ALL: tuple[LeaseCount, ...] = get_args(LeaseCount)
_MAX_RESOURCES = 1000
OTHER = "(other)"
UNKNOWN = "(unknown)"


class LeaseSnapshot(TypedDict):
    totals: dict[LeaseCount, int]
    resources: dict[str, dict[LeaseCount, int]]
    waiting: int


class LeaseMetrics:
    """Counters of one lease service in one process, since it started. ``waiting``: requests that wait now."""

    def __init__(self) -> None:
        self.waiting = 0
        self._counts: dict[str, Counter[LeaseCount]] = {}

    def count(self, what: LeaseCount, resource: str = UNKNOWN) -> None:
        """Add to one counter. Candidates choose the names of resources: beyond a thousand they are one."""
        if resource not in self._counts and len(self._counts) >= _MAX_RESOURCES:
            resource = OTHER
        self._counts.setdefault(resource, Counter())[what] += 1

    def snapshot(self) -> LeaseSnapshot:
        """Every counter, in total and for each resource."""
        totals = {what: sum(counts[what] for counts in self._counts.values()) for what in _ALL}
        resources = {name: {what: counts[what] for what in _ALL} for name, counts in self._counts.items()}
        return {"totals": totals, "resources": resources, "waiting": self.waiting}

    def prometheus(self) -> str:
        """The text exposition format of Prometheus."""
        lines = []
        for what in _ALL:
            name = f"tabhelm_lease_{what.replace('-', '_')}_total"
            lines.append(f"# TYPE {name} counter")
            # A name is of letters, digits and ".:_-", or one of ours: nothing has to be escaped.
            lines += [f'{name}{{resource="{resource}"}} {counts[what]}' for resource, counts in self._counts.items()]
        lines += ["# TYPE tabhelm_lease_waiting gauge", f"tabhelm_lease_waiting {self.waiting}"]
        return "\n".join(lines) + "\n"
