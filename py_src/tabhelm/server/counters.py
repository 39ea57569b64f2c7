"""Counting what becomes of requests, for each resource, in the words of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Generic, TypedDict, TypeVar

from tabhelm.server.asgi import Receive, Scope, Send, reply

W = TypeVar("W", bound=str)
MAX_RESOURCES = 1000
OTHER = "(other)"
"""Where counts go once a thousand resources are known: senders choose these names, memory must not grow with them."""
UNKNOWN = "(unknown)"
"""The resource of a request that could not be read so far."""


class Snapshot(TypedDict, Generic[W]):
    totals: dict[W, int]
    resources: dict[str, dict[W, int]]


class Counters(Generic[W]):
    """One counter for each of ``meanings`` and each resource, in one process since it started.

    ``prefix`` begins the names of the metrics; a meaning is their help.
    """

    def __init__(self, prefix: str, meanings: Mapping[W, str]) -> None:
        self._prefix = prefix
        self._meanings = meanings
        self._counts: dict[str, Counter[W]] = {}
        self.app = MetricsEndpoint(self.prometheus)

    def count(self, what: W, resource: str = UNKNOWN, times: int = 1) -> None:
        """Add to one counter."""
        if resource not in self._counts and len(self._counts) >= MAX_RESOURCES:
            resource = OTHER
        self._counts.setdefault(resource, Counter())[what] += times

    def snapshot(self) -> Snapshot[W]:
        """Every counter, in total and for each resource."""
        totals = {what: sum(counts[what] for counts in self._counts.values()) for what in self._meanings}
        resources = {name: {what: counts[what] for what in self._meanings} for name, counts in self._counts.items()}
        return {"totals": totals, "resources": resources}

    def prometheus(self) -> str:
        """The text exposition format of Prometheus."""
        lines = []
        for what, meaning in self._meanings.items():
            name = f"{self._prefix}_{what.replace('-', '_')}_total"
            lines += heading(name, "counter", meaning)
            lines += [f'{name}{{resource="{_escaped(each)}"}} {counts[what]}' for each, counts in self._counts.items()]
        return "\n".join([*lines, *self._more()]) + "\n"

    def _more(self) -> list[str]:
        """Lines of metrics that are no counters of resources."""
        return []


def heading(name: str, kind: str, meaning: str) -> list[str]:
    """What comes before a metric's values."""
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


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
