"""What a lease service counts, for each resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tabhelm.server.counters import Counters, Snapshot, heading

LeaseCount = Literal[
    "granted", "taken-over", "renewed", "refused", "released",
    "malformed", "denied", "busy", "failed",
]  # fmt: skip
_MEANINGS: Mapping[LeaseCount, str] = {
    "granted": "Leases given that were free.",
    "taken-over": "Leases given that had expired under somebody else.",
    "renewed": "Leases given again to their holder.",
    "refused": "Requests for a lease that somebody else has, or for which no epoch is left.",
    "released": "Leases given back.",
    "malformed": "Requests that are not of the contract or too large.",
    "denied": "Requests of candidates that were not let in, or for what is not theirs, or for too many leases.",
    "busy": "Requests for which the database had no time.",
    "failed": "Requests on which the database failed.",
}


class LeaseSnapshot(Snapshot[LeaseCount]):
    waiting: int


class LeaseMetrics(Counters[LeaseCount]):
    """Counters of one lease service in one process, since it started. ``waiting``: requests that wait now. ``app``
    answers with them in Prometheus' format."""

    def __init__(self) -> None:
        super().__init__("tabhelm_lease", _MEANINGS)
        self.waiting = 0

    def snapshot(self) -> LeaseSnapshot:
        """Every counter, in total and for each resource; and how many wait."""
        return {**super().snapshot(), "waiting": self.waiting}

    def _more(self) -> list[str]:
        name = "tabhelm_lease_waiting"
        return [*heading(name, "gauge", "Requests that wait for a lease now."), f"{name} {self.waiting}"]
