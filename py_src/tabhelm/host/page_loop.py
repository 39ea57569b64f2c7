"""A leader loop that runs in a page: the engine holds the lock and tells the page when to run and when to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tabhelm.errors import TabhelmError
from tabhelm.leadership import LeaderContext, Tenure

PAGE_STREAM = "page"
Post = Callable[[dict[str, Any]], None]


class PageLoopFailed(TabhelmError):
    """The page's function threw; the message is the page's."""

    code = "loop-failed"


class PageLoop:
    """One election of one page. ``confirm`` and ``run`` are what the engine's election calls, the rest the page."""

    def __init__(self, handle: str, post: Post) -> None:
        self._handle = handle
        self._post = post
        self.grant = 0
        self._acknowledged: asyncio.Future[bool] | None = None
        self._ended: asyncio.Future[str | None] | None = None
        self._tenure: Tenure | None = None
        self._unsettled: int | None = None
        """The grant whose function still runs in the page, though it was told to stop."""

    async def confirm(self) -> bool:
        """Tell the page of its grant and wait until it acknowledges.

        A page whose function still runs would not: declined at once, so that the others need not wait for its patience.
        """
        if self._unsettled is not None:
            return False
        self.grant += 1
        self._acknowledged = asyncio.get_running_loop().create_future()
        self._post({"type": "grant", "election": self._handle, "grant": self.grant})
        try:
            return await self._acknowledged
        finally:
            self._acknowledged = None

    async def run(self, context: LeaderContext) -> None:
        """Let the page run its function; ends when the function has settled."""
        self._tenure = context.tenure
        self._unsettled = self.grant
        self._ended = asyncio.get_running_loop().create_future()
        self._post(
            {"type": "lead", "election": self._handle, "grant": self.grant, "token": self._token(context.tenure)}
        )
        try:
            error = await self._wait_ended(context)
            if error is not None:
                raise PageLoopFailed(error)
        finally:
            self._tenure = None
            self._ended = None

    async def _wait_ended(self, context: LeaderContext) -> str | None:
        assert self._ended is not None
        done = asyncio.Event()  # awaiting the future itself would cancel it with us, and the page's answer be lost
        self._ended.add_done_callback(lambda _: done.set())
        try:
            await done.wait()
        except asyncio.CancelledError:
            reason = context.tenure.ended or "stopped"
            self._post({"type": "revoke", "election": self._handle, "grant": self.grant, "reason": reason})
            await done.wait()  # until the page's function has settled, or the election's grace is over
            raise
        return self._ended.result()

    def _token(self, tenure: Tenure) -> dict[str, Any] | None:
        if tenure.epoch is None:
            return None
        grant = tenure.grant
        return {
            "domain": grant.domain,
            "resource": grant.resource,
            "epoch": grant.epoch,
            "stream": PAGE_STREAM,
            "owner": grant.owner_id,
        }

    def acknowledged(self, grant: int, accepted: bool = True) -> None:
        """The page accepts (or declines) this grant."""
        if grant == self.grant and self._acknowledged is not None and not self._acknowledged.done():
            self._acknowledged.set_result(accepted)

    def close(self) -> None:
        """The page is gone, or its election is over: nobody answers any more."""
        self.acknowledged(self.grant, accepted=False)
        self.ended(self.grant, None)
        self._unsettled = None

    def ended(self, grant: int, error: str | None) -> None:
        """The page's function settled."""
        if grant == self._unsettled:
            self._unsettled = None
        if grant == self.grant and self._ended is not None and not self._ended.done():
            self._ended.set_result(error)

    async def check(self, grant: int) -> bool:
        """``ctx.check()`` of the page: false if this grant is over."""
        if grant != self.grant or self._tenure is None:
            return False
        await self._tenure.check()
        return True
