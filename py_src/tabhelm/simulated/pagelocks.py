"""A model of a page's locks and single flights (``web/locks.mjs``)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tabhelm.errors import LockLost, NotJoined
from tabhelm.simulated.loop import fail, settle
from tabhelm.simulated.pageerrors import wire_error
from tabhelm.simulated.pagesession import Session

LOOK = 0.25
Body = Callable[["PageLock"], Awaitable[Any]]


class PageLock:
    """What a body gets. ``held`` is the page's belief."""

    def __init__(self, request: PageRequest) -> None:
        self._request = request

    @property
    def held(self) -> bool:
        return self._request.acting

    def check(self) -> None:
        if not self.held:
            raise LockLost(self._request.name, self._request.lost or "released")


class PageLocks:
    """All of one page."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.requests: dict[PageRequest, None] = {}
        self.asked: dict[str, PageRequest] = {}
        self._flights: dict[str, PageRequest] = {}
        self._made = 0
        self._looking = False

    def lock(self, name: str, body: Body, **options: Any) -> PageRequest:
        """``options`` as on the wire: ``scope``, ``shared``, ``ifAvailable``, ``timeoutMs``."""
        return self._add(PageRequest(self, {"name": name, **options}, body))

    def single_flight(self, key: str, work: Body, **options: Any) -> PageRequest:
        """Callers in one page share one."""
        known = self._flights.get(key)
        if known is None or known.outcome.done():
            self._flights[key] = known = self._add(PageRequest(self, {"name": key, "flight": True, **options}, work))
        return known

    def handle(self, request: PageRequest) -> str:
        self._made += 1
        handle = f"l{self._made}"
        self.asked[handle] = request
        return handle

    def forget(self, request: PageRequest) -> None:
        self.asked.pop(request.handle, None)
        request.handle = ""

    def told(self, data: dict[str, Any]) -> None:
        request = self.asked.get(data["lock"])
        if request is not None:
            request.told(data)

    def look(self) -> None:
        for request in list(self.requests):
            request.look()

    def down(self, reason: str) -> None:
        for request in list(self.requests):
            request.down(reason)

    def _add(self, request: PageRequest) -> PageRequest:
        self.requests[request] = None
        self.session.agent.call(request.look)
        if not self._looking:
            self._looking = True
            self.session.agent.call(self._again)
        return request

    def _again(self) -> None:
        def due() -> None:
            self.look()
            self._looking = bool(self.requests)
            if self._looking:
                self._again()

        self.session.ports.clock.call_later(LOOK, due)


class PageRequest:
    """One request, until its body has settled; its outcome is a future."""

    def __init__(self, locks: PageLocks, wanted: dict[str, Any], body: Body) -> None:
        self._locks = locks
        self._session = locks.session
        self._wanted = wanted
        self._body = body
        self._granted = False
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self.name = str(wanted["name"])
        self.handle = ""
        self.lost: str | None = None
        self.outcome: asyncio.Future[Any] = self._session.agent.loop.create_future()

    @property
    def acting(self) -> bool:
        """Whether the body runs and believes that it holds the lock."""
        running = self._task is not None and not self._over
        return running and self.lost is None and not self._session.doubts(self._session.settings.stall_after)

    def look(self) -> None:
        session = self._session
        if self._over:
            return
        if self._task is not None:
            if session.doubts(session.settings.stall_after):
                self._lose("doubt")
        elif self._granted:
            if session.able():
                self._task = session.agent.start(self._run(self.handle))
        elif not self.handle and session.up and not session.frozen:
            self.handle = self._locks.handle(self)
            session.post({"type": "lock", "lock": self.handle, **self._wanted})

    def told(self, data: dict[str, Any]) -> None:
        state = data["state"]
        if state == "granted":
            self._granted = True
            self.look()
        elif state == "gone":
            if self._task is not None:
                self._lose(data["reason"])
            self._granted = False
            self._locks.forget(self)
        elif state == "refused":
            self._end(wire_error(data["error"]))
        elif data.get("error"):
            self._end(wire_error({**data["error"], "code": data["error"]["code"] or "flight-failed"}))
        else:
            self._end(None, None if data["value"] is None else json.loads(data["value"]))

    def down(self, reason: str) -> None:
        self._locks.forget(self)
        self._granted = False
        if self._task is not None:
            self._lose(reason)
        elif self._session.left:
            self._end(NotJoined("this tab has left"))

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if self._task is None:
            self._end(asyncio.CancelledError())

    def _lose(self, reason: str) -> None:
        if self.lost is None and self._task is not None:
            self.lost = reason
            self._task.cancel()

    async def _run(self, handle: str) -> None:
        error: BaseException | None = None
        value: Any = None
        try:
            lock = PageLock(self)
            lock.check()
            value = await self._body(lock)
        except asyncio.CancelledError as cancelled:
            error = cancelled
        except Exception as failure:
            error = failure
        if self.lost is None and self._session.doubts(self._session.settings.stall_after):
            self.lost = "doubt"
        outcome: dict[str, Any] | None = None
        if self._wanted.get("flight") and self.lost is None:
            told = None if error is None else {"name": type(error).__name__, "message": str(error), "code": ""}
            outcome = {"value": json.dumps(value)} if told is None else {"error": told}
        if self.lost is not None and (error is None or isinstance(error, asyncio.CancelledError)):
            error = LockLost(self.name, self.lost)
        self.handle = self.handle and handle
        self._end(error, value, outcome)

    def _end(self, error: BaseException | None, value: Any = None, outcome: dict[str, Any] | None = None) -> None:
        if self._over:
            return
        self._over = True
        if self.handle:
            more = {} if outcome is None else {"outcome": outcome}
            self._session.post({"type": "unlock", "lock": self.handle, **more})
        self._locks.requests.pop(self, None)
        self._locks.forget(self)
        if error is None:
            settle(self.outcome, value)
        elif isinstance(error, asyncio.CancelledError):
            self.outcome.cancel()
        else:
            fail(self.outcome, error)
