"""What a receiver counts, for each resource."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypedDict

What = Literal[
    "accepted", "duplicate", "rejected", "retry", "skipped",  # operations
    "barrier", "stale", "overtaken", "malformed", "denied", "busy", "failed",  # requests
]  # fmt: skip
_ALL: tuple[What, ...] = (
    "accepted", "duplicate", "rejected", "retry", "skipped",
    "barrier", "stale", "overtaken", "malformed", "denied", "busy", "failed",
)  # fmt: skip
_MAX_RESOURCES = 1000
OTHER = "(other)"
"""Where counts go once a thousand resources are known: senders choose these names, memory must not grow with them."""
UNKNOWN = "(unknown)"
"""The resource of a request whose token could not be read."""


class Snapshot(TypedDict):
    totals: dict[What, int]
    resources: dict[str, dict[What, int]]


class ReceiverMetrics:
    """Counters of one receiver in one process, since it started."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[What]] = {}

    def count(self, what: What, resource: str = UNKNOWN, times: int = 1) -> None:
        """Add to one counter."""
        if resource not in self._counts and len(self._counts) >= _MAX_RESOURCES:
            resource = OTHER
        self._counts.setdefault(resource, Counter())[what] += times

    def snapshot(self) -> Snapshot:
        """Every counter, in total and for each resource."""
        totals = {what: sum(counts[what] for counts in self._counts.values()) for what in _ALL}
        resources = {name: {what: counts[what] for what in _ALL} for name, counts in self._counts.items()}
        return {"totals": totals, "resources": resources}

    def prometheus(self) -> str:
        """The text exposition format of Prometheus."""
        lines = []
        for what in _ALL:
            lines.append(f"# TYPE tabhelm_receiver_{what}_total counter")
            for resource, counts in self._counts.items():
                lines.append(f'tabhelm_receiver_{what}_total{{resource="{_escaped(resource)}"}} {counts[what]}')
        return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
