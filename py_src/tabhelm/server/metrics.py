"""What a receiver counts, for each resource, and how long its requests took."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Literal

from tabhelm.server.counters import Counters, heading

What = Literal[
    "accepted", "duplicate", "rejected", "retry", "skipped",  # operations
    "barrier", "stale", "overtaken", "malformed", "denied", "busy", "failed",  # requests
]  # fmt: skip
_MEANINGS: Mapping[What, str] = {
    "accepted": "Operations applied and committed.",
    "duplicate": "Operations that had been committed before.",
    "rejected": "Operations refused for good, or under a key that was used with another payload.",
    "retry": "Operations that may be sent again.",
    "skipped": "Operations behind one of their partition that did not commit.",
    "barrier": "Accepted requests without operations.",
    "stale": "Requests refused because a newer owner has been seen.",
    "overtaken": "Requests refused because a later token of the same owner was seen first.",
    "malformed": "Requests that are not of the contract or too large.",
    "denied": "Requests of senders that were not let in, or for what is not theirs.",
    "busy": "Requests for which the database had no time.",
    "failed": "Requests whose transaction failed.",
}
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram, in seconds."""


class ReceiverMetrics(Counters[What]):
    """Counters of one receiver in one process, since it started. ``app`` answers with them in Prometheus' format."""

    def __init__(self) -> None:
        super().__init__("tabhelm_receiver", _MEANINGS)
        self._latencies = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def took(self, seconds: float) -> None:
        """Add a request to the latency histogram: from its arrival to the beginning of its answer."""
        self._latencies[bisect_left(BUCKETS, seconds)] += 1
        self._seconds += seconds

    def _more(self) -> list[str]:
        name = "tabhelm_receiver_request_seconds"
        lines = heading(name, "histogram", "From a request's arrival to the beginning of its answer.")
        below = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._latencies, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*lines, f"{name}_sum {self._seconds}", f"{name}_count {below}"]
