"""Leases in one SQLite file, which may hold a receiver's tables too.

Several processes of one machine may use it at once: they share the machine's clock. A change is made under the file's
one write lock and committed with ``synchronous=FULL``: a token that was given is given once, power cut or not.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from tabhelm.server.lease_store import Decide, LeaseKey, LeaseRecord, TooManyLeases
from tabhelm.server.store import R, StoreBusy

T = TypeVar("T")
_LOOK = 0.002
"""Seconds between two looks at a locked file. SQLite itself would look ever more seldom, and a receiver that writes all
the time leaves but moments in between: renewals would miss them for seconds."""
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS tabhelm_lease_domain (one INTEGER PRIMARY KEY CHECK (one = 1), domain TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS tabhelm_leases (
        subject TEXT NOT NULL, resource TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
        holder TEXT, ttl REAL NOT NULL, renewed_at REAL NOT NULL,
        PRIMARY KEY (subject, resource)
    ) WITHOUT ROWID""",
)


class SqliteLeaseStore:
    """``busy_timeout``: seconds that a request waits for other writers of the file, counted from its arrival. ``clock``
    gives seconds since 1970."""

    def __init__(self, path: str | Path, *, busy_timeout: float = 5.0, clock: Callable[[], float] = time.time) -> None:
        self._path = str(path)
        self._busy_timeout = busy_timeout
        self._clock = clock
        self._domain: str | None = None
        # One connection, used by one thread. Both are made at first use, so after any fork.
        self._thread: _Thread | None = None

    async def domain(self) -> str:
        if self._domain is None:
            await self._in_thread(self._opened)
        assert self._domain is not None
        return self._domain

    async def change(self, key: LeaseKey, decide: Decide[R], most: int) -> R:
        return await self._in_thread(lambda thread, deadline: self._change(thread, deadline, key, decide, most))

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, thread.close)
            thread.shutdown()

    async def _in_thread(self, work: Callable[[_Thread, float], T]) -> T:
        if self._thread is None:
            self._thread = _Thread()
        # Those behind one that waited for the lock in vain have waited too: the deadline is that of their arrival.
        thread, deadline = self._thread, time.monotonic() + self._busy_timeout
        return await asyncio.get_running_loop().run_in_executor(thread, work, thread, deadline)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _change(self, thread: _Thread, deadline: float, key: LeaseKey, decide: Decide[R], most: int) -> R:
        with self._as_busy():
            connection = self._opened(thread, deadline)
            before = _until(deadline, lambda: _read(connection, key))
            after, result = decide(before, self._clock())
            if after == before:
                return result  # who only looks takes no lock
            with _transaction(connection, deadline):
                before = _read(connection, key)
                after, result = decide(before, self._clock())
                if before is None and after is not None and _count(connection, key) >= most:
                    raise TooManyLeases(f"{most} leases, and no more, may be held by one subject")
                if after is not None and after != before:
                    values = (*key, after.epoch, after.seq, after.holder, after.ttl, after.renewed_at)
                    connection.execute("INSERT OR REPLACE INTO tabhelm_leases VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            return result

    def _opened(self, thread: _Thread, deadline: float) -> sqlite3.Connection:
        if thread.connection is not None:
            return thread.connection
        with self._as_busy():
            connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            try:
                _until(deadline, lambda: connection.execute("PRAGMA journal_mode=WAL"))
                connection.execute("PRAGMA synchronous=FULL")
                with _transaction(connection, deadline):
                    for statement in _SCHEMA:
                        connection.execute(statement)
                    drawn = (secrets.token_hex(16),)
                    connection.execute("INSERT OR IGNORE INTO tabhelm_lease_domain VALUES (1, ?)", drawn)
                    (self._domain,) = connection.execute("SELECT domain FROM tabhelm_lease_domain").fetchone()
            except BaseException:
                connection.close()
                raise
            thread.connection = connection
        return connection

    @contextmanager
    def _as_busy(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # locked, full, unreadable: nothing was written
            raise StoreBusy(f"{self._path}: {error}") from error


class _Thread(ThreadPoolExecutor):
    """One thread, and the connection that it alone may use: after a close, the next one has its own."""

    def __init__(self) -> None:
        super().__init__(1, thread_name_prefix="tabhelm-leases")
        self.connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """In the thread."""
        if self.connection is not None:
            self.connection.close()


def _until(deadline: float, attempt: Callable[[], T]) -> T:
    """Try until the file is not locked."""
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            locked = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not locked or time.monotonic() > deadline:
                raise
            time.sleep(_LOOK)


@contextmanager
def _transaction(connection: sqlite3.Connection, deadline: float) -> Iterator[None]:
    _until(deadline, lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _read(connection: sqlite3.Connection, key: LeaseKey) -> LeaseRecord | None:
    query = "SELECT epoch, seq, holder, ttl, renewed_at FROM tabhelm_leases WHERE subject = ? AND resource = ?"
    with closing(connection.execute(query, key)) as found:
        row = found.fetchone()
    return None if row is None else LeaseRecord(*row)


def _count(connection: sqlite3.Connection, key: LeaseKey) -> int:
    (count,) = connection.execute("SELECT count(*) FROM tabhelm_leases WHERE subject = ?", (key.subject,)).fetchone()
    return int(count)
