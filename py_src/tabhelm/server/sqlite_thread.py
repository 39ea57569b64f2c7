"""One SQLite file and the one thread that works on it, for as many requests as care to wait."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

from tabhelm.server.arguments import checked
from tabhelm.server.store import R, StoreBusy

C = TypeVar("C", bound=sqlite3.Connection)
T = TypeVar("T")
_LOOK = 0.002
"""Seconds between two looks at a locked file. SQLite itself would look ever more seldom, and a receiver that writes all
the time leaves but moments in between: renewals of leases would miss them for seconds."""
_CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)
"""Not there, not writable, or too many at it at once: as long as that lasts, the senders' operations must wait."""


class SqliteThread(Generic[C]):
    """SQLite has one writer: one thread with one connection. Both are made at first use, so after any fork.

    ``open`` and ``shut`` make and end a connection, in the thread; ``open`` is told until when it may wait
    (``time.monotonic()``). ``busy_timeout`` is in seconds from a request's arrival, ``max_waiting`` in requests.
    """

    def __init__(
        self, path: str, open: Callable[[float], C], shut: Callable[[C], None], *, busy_timeout: float, max_waiting: int
    ) -> None:
        self._path = path
        self._open = open
        self._shut = shut
        self._busy_timeout = checked("busy_timeout", busy_timeout, 0, "seconds")
        self._max_waiting = checked("max_waiting", max_waiting, 1, "request")
        self._waiting = 0
        self._thread: _Thread[C] | None = None

    async def run(self, work: Callable[[C, float], R]) -> R:
        """Run ``work(connection, deadline)`` in the thread.

        Raises:
            StoreBusy: others kept the file locked, too many requests wait, or the file cannot be written.
        """
        if self._waiting >= self._max_waiting:
            raise StoreBusy(f"{self._waiting} requests wait for {self._path} already")
        if self._thread is None:
            self._thread = _Thread()
        thread = self._thread
        self._waiting += 1
        # Those behind one that waited for the lock in vain have waited too: they try once, else the last of them would
        # be answered after as many timeouts as there are requests.
        deadline = time.monotonic() + self._busy_timeout
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, self._run, thread, work, deadline)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Finish what runs, then close the connection. The next ``run`` opens another one, in another thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close, thread)
            thread.shutdown()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self, thread: _Thread[C], work: Callable[[C, float], R], deadline: float) -> R:
        with self._as_busy():
            if thread.connection is None:
                thread.connection = self._open(deadline)
            return work(thread.connection, deadline)

    def _close(self, thread: _Thread[C]) -> None:
        if thread.connection is not None:
            self._shut(thread.connection)

    @contextmanager
    def _as_busy(self) -> Iterator[None]:
        """Around our own statements. (What those of ``apply`` raise does not come as far as this.)"""
        try:
            yield
        except sqlite3.OperationalError as error:
            if is_busy(error) or _code(error) in _CLOSED:
                raise StoreBusy(f"{self._path}: {error}") from error
            raise


class _Thread(ThreadPoolExecutor, Generic[C]):
    """One thread, and the connection that it alone may use: after a close, the next one has its own."""

    def __init__(self) -> None:
        super().__init__(1, thread_name_prefix="tabhelm-sqlite")
        self.connection: C | None = None


def until(deadline: float, attempt: Callable[[], T]) -> T:
    """Try until the file is not locked, at least once."""
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            locked = _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not locked or time.monotonic() > deadline:
                raise
            time.sleep(_LOOK)


def enter_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Several processes at once, and durable commits. SQLite's own busy timeout does not cover this switch."""
    until(deadline, lambda: connection.execute("PRAGMA journal_mode=WAL"))
    connection.execute("PRAGMA synchronous=FULL")


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether the trouble is the file's or the disk's, and may pass."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _code(error: sqlite3.OperationalError) -> int:
    # The low byte is the primary code, whatever the extended one says. An error that Python or the application made has
    # none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
