"""The headers that a page gives for its lease service: asked of its policy's own function before each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from tabhelm.election import LeadershipPolicy
from tabhelm.errors import MalformedMessage, PageFunctionFailed
from tabhelm.host.wire import Message, Post, field, optional_text
from tabhelm.ports import Clock
from tabhelm.tasks import within

PATIENCE = 2.0
"""Seconds that the page may take. One that is about to go answers no more: then those of the last time must do."""


class PageHeaders:
    """Those of one page. ``handlers``: its messages about them, by type."""

    def __init__(self, clock: Clock, post: Post) -> None:
        self._clock = clock
        self._post = post
        self._count = 0
        self._asked: dict[int, asyncio.Future[Mapping[str, str] | None]] = {}
        self.handlers: dict[str, Callable[[Message], None]] = {"lease-headers": self._told}

    def bound(self, election: str, policy: LeadershipPolicy) -> LeadershipPolicy:
        """The policy of this election; if it needs headers, the page is asked for them."""
        if policy.lease is None or policy.lease_headers is not None:
            return policy
        known: Mapping[str, str] | None = {}

        async def headers() -> Mapping[str, str]:
            nonlocal known
            if known is not None:  # else the page has none to give
                try:
                    known = await self._ask(election)
                except TimeoutError:
                    pass
            return known or {}

        return replace(policy, lease_headers=headers)

    def end(self) -> None:
        """The page is gone."""
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(TimeoutError())

    async def _ask(self, election: str) -> Mapping[str, str] | None:
        self._count += 1
        call, asked = self._count, asyncio.get_running_loop().create_future()
        self._asked[call] = asked
        self._post({"type": "lease-headers", "election": election, "call": call})
        try:
            return await within(self._clock, PATIENCE, _answer(asked))
        finally:
            del self._asked[call]

    def _told(self, message: Message) -> None:
        asked = self._asked.get(field(message, "call", int))
        headers: Any = message.get("headers")
        error = optional_text(message, "error")
        if headers is not None and not (
            isinstance(headers, dict) and all(isinstance(text, str) for text in headers.values())
        ):
            raise MalformedMessage("'lease-headers' message: field 'headers' must hold texts by name")
        if asked is None or asked.done():
            return
        if error is None:
            asked.set_result(headers)
        else:
            asked.set_exception(PageFunctionFailed(f"leaseHeaders: {error}"))


async def _answer(asked: Awaitable[Mapping[str, str] | None]) -> Mapping[str, str] | None:
    return await asked
