"""The headers of a page's policies, for its lease service and the barrier: asked of the page before each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tabhelm.election import LeadershipPolicy
from tabhelm.host.page_sender import PageFunctions
from tabhelm.ports import Clock
from tabhelm.tasks import within

PATIENCE = 2.0
"""Seconds that a page may take that has given them before. One that hangs, or is about to go, answers no more: then
those of the last time must do, once."""
_HEADERS = {"fenceHeaders": "fence_headers", "leaseHeaders": "lease_headers"}
_OWN_SAY = ("eligible", "score")
"""The page asks these itself."""


def page_policy(given: Any, election: str, functions: PageFunctions, clock: Clock) -> LeadershipPolicy:
    """The policy of a page's election. Its functions stay in the page: in the message each is only ``true``.

    Raises:
        InvalidPolicy: see ``LeadershipPolicy.from_wire``.
    """
    if not isinstance(given, Mapping):
        return LeadershipPolicy.from_wire(given)
    there = [key for key in (*_HEADERS, *_OWN_SAY) if given.get(key) is True]
    own = {_HEADERS[key]: _asked(key, election, functions, clock) for key in there if key in _HEADERS}
    return LeadershipPolicy.from_wire({key: value for key, value in given.items() if key not in there}, **own)


def _asked(key: str, election: str, functions: PageFunctions, clock: Clock) -> Callable[[], Awaitable[Any]]:
    known: Any = None

    async def headers() -> Any:
        nonlocal known
        last, known = known, None
        asking = functions.ask("headers", election, {"key": key})
        try:
            told = await (asking if last is None else within(clock, PATIENCE, asking))
        except TimeoutError:
            return last
        known = told.get("headers")
        return known

    return headers
