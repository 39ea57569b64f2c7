"""Web Locks, over the lock desk of ``desk.mjs``.

The desk keeps the browser's side (whether a request is still wanted is decided there, before a grant is kept) and calls
one listener a request; here is the Python side: a future for the grant, a flag for the lock, one callback for its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tabhelm.browser._js import create_proxy, js, to_python_value
from tabhelm.errors import LockWithdrawn, NoAuthority
from tabhelm.ports.locks import LockEnd, LockInfo, LockMode, LockSnapshot


class BrowserLock:
    """One request, and the lock once it is granted."""

    __slots__ = ("_end", "_entry", "_granted", "_held", "_listener", "_name", "_on_end", "_proxy")

    def __init__(self, name: str) -> None:
        self._name = name
        self._held = False
        self._end: LockEnd | None = None
        self._on_end: Callable[[LockEnd], None] | None = None
        self._granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._listener = self._told  # our own reference: the proxy is destroyed while it is running
        self._proxy: Any = create_proxy(self._listener)
        self._entry: Any = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def held(self) -> bool:
        # The desk lets go before it tells, and a broken interpreter may be told nothing.
        return self._held and self._entry is not None and bool(self._entry.held)

    @property
    def ended(self) -> LockEnd | None:
        return self._end

    def release(self) -> None:
        if self._entry is not None:
            self._entry.release()

    def on_end(self, callback: Callable[[LockEnd], None]) -> None:
        self._on_end = callback
        if self._end is not None:
            self._tell()

    async def wait(self, desk: Any, owner: str, mode: LockMode, if_available: bool, steal: bool) -> bool:
        """Ask, and wait for the answer: false when the lock is not available."""
        self._entry = desk.request(owner, self._name, mode, if_available, steal, self._proxy)
        try:
            return await self._granted
        except asyncio.CancelledError:
            # Withdrawn at once; and if the grant came before the cancellation was delivered, let go at once.
            if self._entry is not None:
                self._entry.abort()
            elif self._granted.done() and not self._granted.cancelled():
                self._granted.exception()  # an answer that nobody will read is no unhandled error
            raise

    def _told(self, what: str, message: str | None = None) -> None:
        """The desk's listener. Only notes and hands off: it may run inside our own ``release`` or ``drop``."""
        waiting = not self._granted.done()
        if what == "granted":
            self._held = True
            if waiting:
                self._granted.set_result(True)
            else:
                self._entry.release()
            return
        if what == "unavailable":
            if waiting:
                self._granted.set_result(False)
        elif what == "withdrawn":
            if waiting:
                self._granted.set_exception(LockWithdrawn(self._name, "its owner was dropped, or is not admitted"))
        elif what == "failed":
            if waiting:
                self._granted.set_exception(NoAuthority(f"lock {self._name!r} cannot be asked for: {message}"))
        else:
            self._held = False
            self._end = what  # type: ignore[assignment]  # "released", "dropped" or "stolen"
            self._tell()
        self._entry = None
        self._proxy.destroy()

    def _tell(self) -> None:
        callback, self._on_end = self._on_end, None
        if callback is not None and self._end is not None:
            asyncio.get_event_loop().call_soon(callback, self._end)


class BrowserLocks:
    """The desk is ``LockDesk`` of ``desk.mjs``: the engine's, shared with its JavaScript, or a page's own."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk

    async def acquire(
        self,
        name: str,
        *,
        owner: str = "",
        mode: LockMode = "exclusive",
        if_available: bool = False,
        steal: bool = False,
    ) -> BrowserLock | None:
        if not self._desk.admitted(owner):
            raise LockWithdrawn(name, f"owner {owner!r} is not admitted")
        lock = BrowserLock(name)
        return lock if await lock.wait(self._desk, owner, mode, if_available, steal) else None

    def admit(self, owner: str) -> None:
        self._desk.admit(owner)

    def drop(self, owner: str) -> None:
        self._desk.drop(owner)

    def admitted(self, owner: str) -> bool:
        return bool(self._desk.admitted(owner))

    async def query(self) -> LockSnapshot:
        manager = getattr(js().navigator, "locks", None)
        if not manager:
            raise NoAuthority("this context has no Web Locks (they need a secure context)")
        seen = to_python_value(await manager.query())
        return LockSnapshot(*(tuple(map(_info, seen.get(key) or ())) for key in ("held", "pending")))


def _info(entry: dict[str, Any]) -> LockInfo:
    return LockInfo(str(entry.get("name")), str(entry.get("mode")), str(entry.get("clientId")))
