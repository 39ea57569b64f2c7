"""One IndexedDB connection: opened when needed, given up when the browser or another tab wants it gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tabhelm.browser._js import Thrown, create_proxy, js, js_exception, to_js_value
from tabhelm.browser.clock import BrowserClock
from tabhelm.errors import DatabaseBlocked, DatabaseClosed, DatabaseDenied, DatabaseError, DatabaseNewer, QuotaExceeded
from tabhelm.ports.database import DatabaseEvent, Schema

OPEN_TIMEOUT = 10.0
"""Seconds after which a caller that waits for a database to open is told that it does not. Browsers may never answer:
an upgrade or a deletion waits for a connection that does not go, or the storage backend hangs. An answer that comes
later is welcome all the same."""
LONGEST_PAUSE = 320.0
"""Seconds between two requests for the same opening; they double from ``OPEN_TIMEOUT`` on. A browser that has lost one
may answer the next (old WebKit did), one that keeps them in a line behind a pending deletion shall not gather many."""

_DENIED = frozenset({"SecurityError", "InvalidStateError", "NotAllowedError", "NotSupportedError"})
"""What ``open`` answers where storage is forbidden; Firefox's private windows say ``InvalidStateError``."""


class Connection:
    """The current connection of one database, shared by all its transactions."""

    def __init__(self, name: str, schema: Schema, clock: BrowserClock, tell: Callable[[DatabaseEvent], None]) -> None:
        self.name = name
        self._schema = schema
        self._clock = clock
        self._tell = tell
        self._database: Any = None
        self._opening: _Opening | None = None
        self._opened_by: _Opening | None = None
        self._closed = False
        self._listener = self._gives_way  # our own reference: the proxy is destroyed while it is running
        self._proxy: Any = None

    async def get(self) -> Any:
        """The open ``IDBDatabase``, opened first when there is none; callers get it in the order of their asking."""
        if self._closed:
            raise DatabaseClosed(f"database {self.name!r} was closed by close()")
        opening = self._opening
        if self._database is not None:
            opening = self._opened_by
            if opening is None or not opening.awaited:
                return self._database
        if opening is None:
            opening = self._opening = _Opening(self.name, self._schema, self._clock, self._opened, self._tell)
        return await opening.wait()

    def _opened(self, database: Any) -> bool:
        """An attempt to open has ended (``None``: failed). Whether the connection is wanted."""
        self._opening, self._opened_by = None, self._opening
        if database is None or self._closed:
            return False
        self._database = database
        self._proxy = create_proxy(self._listener)
        database.onversionchange = self._proxy
        database.onclose = self._proxy
        self._tell("opened")
        return True

    def _gives_way(self, event: Any) -> None:
        """``versionchange``: somebody upgrades or deletes the database. ``close``: the browser has closed it."""
        kind = event.type
        self._discard()
        self._tell("versionchange" if kind == "versionchange" else "closed")

    def lost(self, database: Any) -> None:
        """A transaction could not even begin: this connection is dead, though no event has said so (yet)."""
        if self._database is not None and database is self._database:
            self._discard()
            self._tell("closed")

    def _discard(self) -> None:
        database, self._database = self._database, None
        if database is None:
            return
        database.onversionchange = None
        database.onclose = None
        database.close()  # what is running in it still completes
        self._proxy.destroy()
        self._proxy = None

    def close(self) -> None:
        self._closed = True
        self._discard()


class _Opening:
    """One attempt to open, by one request or a few, for any number of callers, until the browser answers. Each caller
    waits for ``OPEN_TIMEOUT`` at most; the attempt goes on without it, and later callers join it."""

    def __init__(
        self,
        name: str,
        schema: Schema,
        clock: BrowserClock,
        ended: Callable[[Any], bool],
        tell: Callable[[DatabaseEvent], None],
    ) -> None:
        self._name = name
        self._schema = schema
        self._clock = clock
        self._ended: Callable[[Any], bool] | None = ended
        self._tell = tell
        self._waiters: list[asyncio.Future[Any]] = []
        self._failure: DatabaseError | None = None
        self._database: Any = None
        self._blocked = False
        self._told = False
        self._asked = self._answers = 0
        self._ask_after = clock.monotonic()
        self._pause = OPEN_TIMEOUT
        self._listener = self._answered  # our own reference: the proxy is destroyed while it is running
        self._proxy: Any = None

    def _ask(self) -> None:
        """Ask the browser, unless it was asked a short while ago. May end (and fail) at once."""
        now = self._clock.monotonic()
        if self._blocked or now < self._ask_after:
            return
        self._ask_after = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        try:
            factory = getattr(js(), "indexedDB", None)
            if not factory:
                self._end(None, self._denied("this context has no IndexedDB"))
                return
            request = factory.open(self._name, self._schema.version)
        except js_exception() as error:
            self._end(None, self._error(error))
            return
        self._asked += 1
        self._proxy = self._proxy or create_proxy(self._listener)
        for kind in ("success", "error", "blocked", "upgradeneeded"):
            setattr(request, f"on{kind}", self._proxy)

    @property
    def awaited(self) -> bool:
        """Whether somebody still waits, or has not woken yet."""
        return bool(self._waiters)

    async def wait(self) -> Any:
        if self._ended is not None:
            self._ask()
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Any] = loop.create_future()
        self._waiters.append(waiter)
        if self._ended is None:
            loop.call_soon(_settle, waiter, self._database)  # behind those who have not woken yet
        timer = self._clock.call_later(OPEN_TIMEOUT, lambda: self._expired(waiter))
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiters.remove(waiter)

    def _expired(self, waiter: asyncio.Future[Any]) -> None:
        if self._ended is None or waiter.done():
            return
        self._tell_blocked()
        cause = "another connection is in the way" if self._blocked else "the browser did not answer"
        waiter.set_exception(
            DatabaseBlocked(
                f"database {self._name!r} did not open within {OPEN_TIMEOUT:g} s: {cause}; it goes on by itself once "
                "the database opens: if it does not, close the other tabs of this site"
            )
        )

    def _tell_blocked(self) -> None:
        if not self._told and self._ended is not None:
            self._told = True
            self._tell("blocked")

    def _answered(self, event: Any) -> None:
        """All four events of the open request. Nothing may be raised into the browser."""
        request, kind = event.target, event.type
        if kind == "blocked":
            self._blocked = True
            self._tell_blocked()
            return
        if kind == "upgradeneeded":
            try:
                _upgrade(request, self._schema)
            except Exception as error:
                why = Thrown.of(error) if isinstance(error, js_exception()) else error
                self._failure = DatabaseError(f"database {self._name!r} cannot be set up: {why}")
                request.transaction.abort()
            return
        self._answers += 1
        if self._answers == self._asked:
            self._proxy.destroy()
            self._proxy = None
        if kind == "error":
            event.preventDefault()  # or Firefox reports it as an uncaught error of the page
            self._end(None, self._failure or self._error(request.error))
        elif self._ended is None:
            request.result.close()  # another request of this attempt was answered before: nobody would ever close it
        else:
            self._end(request.result, None)

    def _denied(self, why: str) -> DatabaseDenied:
        way = "allow cookies and site data for this site, leave private browsing, or open an embedded page in a tab"
        return DatabaseDenied(f"database {self._name!r}: {why}: {way}")

    def _error(self, error: Any) -> DatabaseError:
        thrown = Thrown.of(error)
        if thrown.name in _DENIED or "denied" in thrown.message:  # Chromium: UnknownError, the user denied permission
            return self._denied(f"this context may not use IndexedDB ({thrown})")
        if thrown.name == "QuotaExceededError":
            return QuotaExceeded(f"database {self._name!r} cannot be opened: the storage of this origin is full")
        if thrown.name == "VersionError":
            return DatabaseNewer(
                f"database {self._name!r} is newer than version {self._schema.version}, which this code knows: "
                "a later release has upgraded it; reload the page to get that release"
            )
        if thrown.name == "AbortError":  # the storage was wiped while it opened; there is no upgrade of ours to abort
            return DatabaseClosed(f"database {self._name!r} was closed while it opened ({thrown})")
        return DatabaseError(f"database {self._name!r} cannot be opened: {thrown}")

    def _end(self, database: Any, failure: DatabaseError | None) -> None:
        ended, self._ended = self._ended, None
        if ended is None:
            return
        self._failure = failure
        if not ended(database) and database is not None:
            database.close()
            self._failure = failure = DatabaseClosed(f"database {self._name!r} was closed by close()")
        self._database = database
        for waiter in self._waiters:
            if failure is None:
                _settle(waiter, database)
            elif not waiter.done():
                waiter.set_exception(type(failure)(*failure.args))  # each its own traceback


def _settle(waiter: asyncio.Future[Any], database: Any) -> None:
    if not waiter.done():
        waiter.set_result(database)


def _upgrade(request: Any, schema: Schema) -> None:
    """Create what is missing. Additive only: nothing is ever deleted or changed."""
    database, transaction = request.result, request.transaction
    for store in schema.stores:
        if database.objectStoreNames.contains(store.name):
            target = transaction.objectStore(store.name)
        else:
            options = {"keyPath": _path(store.key_path), "autoIncrement": store.auto_increment}
            target = database.createObjectStore(store.name, to_js_value(options))
        for index in store.indexes:
            if not target.indexNames.contains(index.name):
                path = to_js_value(_path(index.key_path)) if isinstance(index.key_path, tuple) else index.key_path
                options = {"unique": index.unique, "multiEntry": index.multi_entry}
                target.createIndex(index.name, path, to_js_value(options))


def _path(key_path: str | tuple[str, ...]) -> str | list[str]:
    return key_path if isinstance(key_path, str) else list(key_path)
