"""What strangers might send, and what may come of it in a log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tabhelm.server.logs import log

FORGED = "x\n2026-11-30 CRITICAL root: forged\r\x1b[2J\x9b31m\u2028\u202etxet\0"
HARMFUL = "'\"; DROP TABLE applied; --\\%s?{}<script>"
texts = st.text(max_size=30) | st.sampled_from([FORGED, HARMFUL, "\ud800", "%(x)s", "{0}", "\u0000", "'", '"'])
payloads = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=4),
    max_leaves=8,
)
quickly = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def harmless(line: str) -> bool:
    return line.replace("\n", "").isprintable()


class Lines(logging.Handler):
    """What a log file would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


async def ask(
    app: Any, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes, **more: Any
) -> tuple[int, bytes]:
    """Straight to an application: no web server would let such things through. The status and body of its answer."""
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        said.append(message)

    await app({"type": "http", "method": method, "path": path, "headers": headers, **more}, receive, send)
    return said[0]["status"], said[1]["body"]
