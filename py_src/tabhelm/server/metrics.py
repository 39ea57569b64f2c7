"""What a receiver counts, for each resource, and how long its requests took."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, TypedDict, get_args

from tabhelm.server.asgi import Receive, Scope, Send, reply

What = Literal[
    "accepted", "duplicate", "rejected", "retry", "skipped",  # operations
    "barrier", "stale", "overtaken", "malformed", "denied", "busy", "failed",  # requests
]  # fmt: skip
_ALL: tuple[What, ...] = get_args(What)
_HELP: Mapping[What, str] = {
    "accepted": "Operations applied and committed.",
    "duplicate": "Operations that had been committed before.",
    "rejected": "Operations refused for good, or under a key that was used with another payload.",
    "retry": "Operations that may be sent again.",
    "skipped": "Operations behind one of their partition that did not commit.",
    "barrier": "Accepted requests without operations.",
    "stale": "Requests refused because a newer owner has been seen.",
    "overtaken": "Requests refused because a later token of the same owner was seen first.",
    "malformed": "Requests that are not of the contract or too large.",
    "denied": "Requests of senders that were not let in.",
    "busy": "Requests for which the database had no time.",
    "failed": "Requests whose transaction failed.",
}
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram, in seconds."""
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
        self._latencies = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self.app = MetricsEndpoint(self.prometheus)

    def count(self, what: What, resource: str = UNKNOWN, times: int = 1) -> None:
        """Add to one counter."""
        if resource not in self._counts and len(self._counts) >= _MAX_RESOURCES:
            resource = OTHER
        self._counts.setdefault(resource, Counter())[what] += times

    def took(self, seconds: float) -> None:
        """Add a request to the latency histogram: from its arrival to the beginning of its answer."""
        self._latencies[bisect_left(BUCKETS, seconds)] += 1
        self._seconds += seconds

    def snapshot(self) -> Snapshot:
        """Every counter, in total and for each resource."""
        totals = {what: sum(counts[what] for counts in self._counts.values()) for what in _ALL}
        resources = {name: {what: counts[what] for what in _ALL} for name, counts in self._counts.items()}
        return {"totals": totals, "resources": resources}

    def prometheus(self) -> str:
        """The text exposition format of Prometheus."""
        lines = []
        for what in _ALL:
            name = f"tabhelm_receiver_{what}_total"
            lines += [f"# HELP {name} {_HELP[what]}", f"# TYPE {name} counter"]
            lines += [f'{name}{{resource="{_escaped(each)}"}} {counts[what]}' for each, counts in self._counts.items()]
        name = "tabhelm_receiver_request_seconds"
        lines += [f"# HELP {name} From a request's arrival to the beginning of its answer.", f"# TYPE {name} histogram"]
        below = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._latencies, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
        lines += [f"{name}_sum {self._seconds}", f"{name}_count {below}"]
        return "\n".join(lines) + "\n"


class MetricsEndpoint:
    """ASGI: the metrics, for whoever asks. They name resources: mount it where your own authentication is.

    Starlette and FastAPI: ``routes=[Route("/metrics", receiver.metrics.app)]``.
    """

    def __init__(self, prometheus: Callable[[], str]) -> None:
        self._prometheus = prometheus

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: any path."""
        if scope["type"] != "http":
            raise RuntimeError(f"the metrics answer HTTP requests, not {scope['type']!r}: mount them inside an app")
        if scope["method"] not in ("GET", "HEAD"):
            await reply(send, 405, b"", {"allow": "GET, HEAD", "content-type": "text/plain"})
            return
        text = self._prometheus().encode() if scope["method"] == "GET" else b""
        await reply(send, 200, text, {"content-type": "text/plain; version=0.0.4; charset=utf-8"})


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
