"""A leader loop that runs in a page: the engine holds the lock and tells the page when to run and when to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tabhelm.errors import PageLoopFailed
from tabhelm.leadership import LeaderContext, Tenure
from tabhelm.leadership.serving import Served

PAGE_STREAM = "page"
_REVOKED = "LeadershipLost:"
Post = Callable[[dict[str, Any]], None]


class PageLoop:
    """One election of one page. ``confirm`` and ``run`` are what the engine's election calls, the rest the page."""

    def __init__(self, handle: str, post: Post) -> None:
        self._handle = handle
        self._post = post
        self.grant = 0
        self._acknowledged: asyncio.Future[bool] | None = None
        self._ended: asyncio.Future[str | None] | None = None
        self._tenure: Tenure | None = None

    async def confirm(self) -> bool:
        """Tell the page of its grant and wait until it acknowledges."""
        self.grant += 1
        self._acknowledged = asyncio.get_running_loop().create_future()
        self._post({"type": "grant", "election": self._handle, "grant": self.grant})
        try:
            return await self._acknowledged
        finally:
            self._acknowledged = None

    async def run(self, context: LeaderContext) -> None:
        """Let the page run its function; ends when the function has settled.

        Cancelling tells the page to stop, and still waits for it: while its function runs, this election takes no part
        (``loop-still-running``). A grant would find no taker and cost the others their patience.

        Raises:
            PageLoopFailed: the function threw.
        """
        self._tenure = context.tenure
        self._ended = asyncio.get_running_loop().create_future()
        self._post(
            {"type": "lead", "election": self._handle, "grant": self.grant, "token": self._token(context.tenure)}
        )
        try:
            await self._until_ended(self._ended, context.tenure)
        finally:
            self._tenure = None
            self._ended = None

    async def _until_ended(self, ended: asyncio.Future[str | None], tenure: Tenure) -> None:
        settled = asyncio.Event()  # awaiting the future itself would cancel it with us, and the page's answer be lost
        ended.add_done_callback(lambda _: settled.set())
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await settled.wait()
            except asyncio.CancelledError as error:
                if cancelled is None:
                    reason = tenure.ended or "stopped"
                    self._post({"type": "revoke", "election": self._handle, "grant": self.grant, "reason": reason})
                cancelled = error
        failure = ended.result()
        if cancelled is not None and (failure is None or failure.startswith(_REVOKED)):
            raise cancelled
        if failure is not None:
            raise PageLoopFailed(failure)

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

    def ended(self, grant: int, error: str | None) -> None:
        """The page's function settled."""
        if grant == self.grant and self._ended is not None and not self._ended.done():
            self._ended.set_result(error)

    def served(self, grant: int) -> Served | None:
        """What this grant's tenure answers and publishes; ``None`` if it is over."""
        return self._tenure.served if grant == self.grant and self._tenure is not None else None

    def tenure(self, grant: int) -> Tenure | None:
        """The tenure of this grant, while its loop runs."""
        return self._tenure if grant == self.grant else None

    async def check(self, grant: int) -> bool:
        """``ctx.check()`` of the page: false if this grant is over."""
        if grant != self.grant or self._tenure is None:
            return False
        await self._tenure.check()
        return True
