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
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS tabhelm_lease_domain (one INTEGER PRIMARY KEY CHECK (one = 1), domain TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS tabhelm_leases (
        subject TEXT NOT NULL, resource TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
        holder TEXT, ttl REAL NOT NULL, renewed_at REAL NOT NULL,
        PRIMARY KEY (subject, resource)
    ) WITHOUT ROWID""",
)


class SqliteLeaseStore:
    """``busy_timeout``: seconds that a request waits for other writers of the file. ``clock`` gives seconds since
    1970."""

    def __init__(self, path: str | Path, *, busy_timeout: float = 5.0, clock: Callable[[], float] = time.time) -> None:
        self._path = str(path)
        self._busy_timeout = busy_timeout
        self._clock = clock
        self._domain: str | None = None
        # One connection, used by one thread. Both are made at first use, so after any fork.
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def domain(self) -> str:
        if self._domain is None:
            await self._in_thread(self._open)
        assert self._domain is not None
        return self._domain

    async def change(self, key: LeaseKey, decide: Decide[R], most: int) -> R:
        return await self._in_thread(lambda: self._change(key, decide, most))

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tabhelm-leases")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _change(self, key: LeaseKey, decide: Decide[R], most: int) -> R:
        with self._as_busy():
            connection = self._open()
            before = _read(connection, key)
            after, result = decide(before, self._clock())
            if after == before:
                return result  # who only looks takes no lock
            with _transaction(connection):
                before = _read(connection, key)
                after, result = decide(before, self._clock())
                if before is None and after is not None and _count(connection, key) >= most:
                    raise TooManyLeases(f"{most} leases, and no more, may be held by one subject")
                if after is not None and after != before:
                    values = (*key, after.epoch, after.seq, after.holder, after.ttl, after.renewed_at)
                    connection.execute("INSERT OR REPLACE INTO tabhelm_leases VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            return result

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        with self._as_busy():
            connection = sqlite3.connect(self._path, timeout=self._busy_timeout, isolation_level=None)
            try:
                self._enter_wal(connection)
                connection.execute("PRAGMA synchronous=FULL")
                with _transaction(connection):
                    for statement in _SCHEMA:
                        connection.execute(statement)
                    drawn = (secrets.token_hex(16),)
                    connection.execute("INSERT OR IGNORE INTO tabhelm_lease_domain VALUES (1, ?)", drawn)
                    (self._domain,) = connection.execute("SELECT domain FROM tabhelm_lease_domain").fetchone()
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return connection

    def _enter_wal(self, connection: sqlite3.Connection) -> None:
        # The busy timeout does not cover this switch when two processes do it at once.
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _as_busy(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # locked, full, unreadable: nothing was written
            raise StoreBusy(f"{self._path}: {error}") from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
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
