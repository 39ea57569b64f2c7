"""Leases in one SQLite file, which may hold a receiver's tables too.

Several processes of one machine may use it at once: they share the machine's clock. A change is made under the file's
one write lock and committed with ``synchronous=FULL``: a token that was given is given once, power cut or not.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tabhelm.server.lease_store import Decide, LeaseKey, LeaseRecord, TooManyLeases
from tabhelm.server.sqlite_thread import SqliteThread, enter_wal, until
from tabhelm.server.store import R

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS tabhelm_lease_domain (one INTEGER PRIMARY KEY CHECK (one = 1), domain TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS tabhelm_leases (
        subject TEXT NOT NULL, resource TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
        holder TEXT, ttl REAL NOT NULL, renewed_at REAL NOT NULL,
        PRIMARY KEY (subject, resource)
    ) WITHOUT ROWID""",
)


class SqliteLeaseStore:
    """``busy_timeout``: seconds that a request waits for other writers of the file, counted from its arrival;
    ``max_waiting``: how many requests may wait in this process. ``clock`` gives seconds since 1970."""

    def __init__(
        self,
        path: str | Path,
        *,
        busy_timeout: float = 5.0,
        max_waiting: int = 256,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = str(path)
        self._clock = clock
        self._domain = ""
        self._thread = SqliteThread(
            self._path, self._open, sqlite3.Connection.close, busy_timeout=busy_timeout, max_waiting=max_waiting
        )

    async def domain(self) -> str:
        return self._domain or await self._thread.run(lambda connection, deadline: self._domain)

    async def change(self, key: LeaseKey, decide: Decide[R], most: int) -> R:
        def change(connection: sqlite3.Connection, deadline: float) -> R:
            before = until(deadline, lambda: _read(connection, key))
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

        return await self._thread.run(change)

    async def close(self) -> None:
        await self._thread.close()

    def _open(self, deadline: float) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        try:
            enter_wal(connection, deadline)
            with _transaction(connection, deadline):
                for statement in _SCHEMA:
                    connection.execute(statement)
                drawn = (secrets.token_hex(16),)
                connection.execute("INSERT OR IGNORE INTO tabhelm_lease_domain VALUES (1, ?)", drawn)
                (self._domain,) = connection.execute("SELECT domain FROM tabhelm_lease_domain").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def _transaction(connection: sqlite3.Connection, deadline: float) -> Iterator[None]:
    until(deadline, lambda: connection.execute("BEGIN IMMEDIATE"))
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
