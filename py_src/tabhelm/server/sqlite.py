"""The embedded store: marks, known operations and the application's own tables in one SQLite file.

Several processes may use the file at once. Every transaction begins ``IMMEDIATE``, so that it holds the only write lock
before it reads the marks, and is committed with ``synchronous=FULL``: what was answered survives a power cut.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tabhelm.errors import TabhelmError
from tabhelm.fencing.guard import Marks
from tabhelm.server.sqlite_connection import SAVEPOINT, LentConnection
from tabhelm.server.store import FenceTransaction, Key, Known, R, StoreBusy, TransactionBroken

SCHEMA_VERSION = 1
# Python keeps prepared statements by their text, and SQLite asks for authorization only when it prepares: with these
# comments, a statement of the application is never taken for one of ours.
_BEGIN = "BEGIN IMMEDIATE -- receiver"
_COMMIT = "COMMIT -- receiver"
_ROLLBACK = "ROLLBACK -- receiver"
_SAVE = f"SAVEPOINT {SAVEPOINT} -- receiver"
_UNDO = f"ROLLBACK TO {SAVEPOINT} -- receiver"
_RELEASE = f"RELEASE {SAVEPOINT} -- receiver"
_CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)
"""Not there, not writable, or too many at it at once: as long as that lasts, the senders' operations must wait."""
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS tabhelm_schema (version INTEGER NOT NULL)",
    """CREATE TABLE IF NOT EXISTS tabhelm_marks (
        subject TEXT NOT NULL, domain TEXT NOT NULL, resource TEXT NOT NULL,
        epoch INTEGER NOT NULL, owner TEXT NOT NULL,
        PRIMARY KEY (subject, domain, resource)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS tabhelm_streams (
        subject TEXT NOT NULL, domain TEXT NOT NULL, resource TEXT NOT NULL, stream TEXT NOT NULL, seq INTEGER NOT NULL,
        PRIMARY KEY (subject, domain, resource, stream)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS tabhelm_operations (
        subject TEXT NOT NULL, op_id TEXT NOT NULL, digest BLOB NOT NULL, status TEXT NOT NULL, detail TEXT NOT NULL,
        expires_at REAL NOT NULL, PRIMARY KEY (subject, op_id)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS tabhelm_operations_expiry ON tabhelm_operations (expires_at)",
)


class SqliteFenceStore:
    """A SQLite file. ``apply`` gets its ``sqlite3.Connection``, inside the receiver's transaction.

    ``setup`` is called once with each new connection, inside a transaction: create the application's tables there
    (``IF NOT EXISTS``; other processes do the same). ``busy_timeout`` is how many seconds a request waits for other
    writers of the file, counted from its arrival, ``max_waiting`` how many requests may wait in this process; beyond
    that the answer is 503.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        setup: Callable[[sqlite3.Connection], object] | None = None,
        busy_timeout: float = 5.0,
        max_waiting: int = 256,
    ) -> None:
        self._path = str(path)
        self._setup = setup
        self._busy_timeout = busy_timeout
        self._max_waiting = max_waiting
        self._waiting = 0
        # SQLite has one writer: one thread with one connection. Both are made at first use, so after any fork.
        self._thread: _Thread | None = None

    async def run(self, work: Callable[[FenceTransaction[sqlite3.Connection]], R]) -> R:
        """Run ``work`` in one ``IMMEDIATE`` transaction in the store's thread.

        Raises:
            StoreBusy: other writers kept the file locked, too many requests wait, or the file cannot be written.
        """
        if self._waiting >= self._max_waiting:
            raise StoreBusy(f"{self._waiting} requests wait for {self._path} already")
        if self._thread is None:
            self._thread = _Thread()
        thread = self._thread
        self._waiting += 1
        deadline = time.monotonic() + self._busy_timeout
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, self._run, thread, work, deadline)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Finish what runs, then close the connection. The next ``run`` opens it again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, thread.close)
            thread.shutdown()

    # -- in the store's thread -----------------------------------------------------------------------------------------

    def _run(self, thread: _Thread, work: Callable[[FenceTransaction[sqlite3.Connection]], R], deadline: float) -> R:
        with _as_busy(self._path):
            # Those behind one that waited for the lock in vain have waited too: they try once, else the last of them
            # would be answered after as many timeouts as there are requests.
            left = max(0.0, deadline - time.monotonic())
            if thread.connection is None:
                thread.connection = self._open(left)
            connection = thread.connection
            connection.execute(f"PRAGMA busy_timeout={int(left * 1000)}")
            connection.execute(_BEGIN)
            try:
                result = work(_Transaction(self._path, connection))
                connection.execute(_COMMIT)
                return result
            finally:
                if connection.in_transaction:
                    connection.execute(_ROLLBACK)

    def _open(self, patience: float) -> LentConnection:
        connection = sqlite3.connect(
            self._path, timeout=patience, isolation_level=None, cached_statements=256, factory=LentConnection
        )
        try:
            self._enter_wal(connection, patience)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
            connection.set_authorizer(connection.authorize)
            connection.execute(_BEGIN)
            for statement in _SCHEMA:
                connection.execute(statement)
            found = connection.execute("SELECT version FROM tabhelm_schema").fetchone()
            if found is None:
                connection.execute("INSERT INTO tabhelm_schema VALUES (?)", (SCHEMA_VERSION,))
            elif found[0] != SCHEMA_VERSION:
                raise TabhelmError(
                    f"{self._path} holds tabhelm tables of version {found[0]}; this is version {SCHEMA_VERSION}"
                )
            if self._setup is not None:
                with connection.lent():
                    self._setup(connection)
            connection.execute(_COMMIT)
        except BaseException:
            connection.shut()
            raise
        return connection

    def _enter_wal(self, connection: sqlite3.Connection, patience: float) -> None:
        # The busy timeout does not cover this switch when two processes do it at once.
        deadline = time.monotonic() + patience
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)


class _Thread(ThreadPoolExecutor):
    """One thread, and the connection that it alone may use: after a close, the next one has its own."""

    def __init__(self) -> None:
        super().__init__(1, thread_name_prefix="tabhelm-store")
        self.connection: LentConnection | None = None

    def close(self) -> None:
        """In the thread."""
        if self.connection is not None:
            self.connection.shut()


class _Transaction:
    def __init__(self, path: str, connection: LentConnection) -> None:
        self._path = path
        self.application = connection

    def marks(self, key: Key, stream: str) -> Marks | None:
        where = "subject = ? AND domain = ? AND resource = ?"
        found = self._one(f"SELECT epoch, owner FROM tabhelm_marks WHERE {where}", key)
        if found is None:
            return None
        seen = self._one(f"SELECT seq FROM tabhelm_streams WHERE {where} AND stream = ?", (*key, stream))
        return Marks(found[0], found[1], {} if seen is None else {stream: seen[0]})

    def raise_marks(self, key: Key, before: Marks | None, after: Marks, stream: str) -> None:
        execute = self.application.execute
        if before is None or (before.epoch, before.owner_id) != (after.epoch, after.owner_id):
            execute("DELETE FROM tabhelm_streams WHERE subject = ? AND domain = ? AND resource = ?", key)
            execute("INSERT OR REPLACE INTO tabhelm_marks VALUES (?, ?, ?, ?, ?)", (*key, after.epoch, after.owner_id))
        if stream in after.streams:
            execute(
                "INSERT OR REPLACE INTO tabhelm_streams VALUES (?, ?, ?, ?, ?)", (*key, stream, after.streams[stream])
            )

    def known(self, subject: str, op_ids: Sequence[str]) -> dict[str, Known]:
        rows = self.application.execute(
            "SELECT op_id, digest, status, detail, expires_at FROM tabhelm_operations"
            " WHERE subject = ? AND op_id IN (SELECT value FROM json_each(?))",
            (subject, json.dumps(op_ids)),
        )
        return {row[0]: Known(*row[1:]) for row in rows}

    def remember(self, subject: str, decisions: Mapping[str, Known]) -> None:
        self.application.executemany(
            "INSERT INTO tabhelm_operations VALUES (?, ?, ?, ?, ?, ?)",
            [
                (subject, op_id, known.digest, known.status, known.detail, known.expires_at)
                for op_id, known in decisions.items()
            ],
        )

    def forget(self, before: float, limit: int) -> int:
        return self.application.execute(
            "DELETE FROM tabhelm_operations WHERE (subject, op_id) IN"
            " (SELECT subject, op_id FROM tabhelm_operations WHERE expires_at < ? LIMIT ?)",
            (before, limit),
        ).rowcount

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        connection = self.application
        connection.execute(_SAVE)
        try:
            with connection.lent():
                yield
            connection.execute(_RELEASE)  # fails if a statement of the block ended the transaction and hid it
        except BaseException as error:
            if isinstance(error, sqlite3.OperationalError) and _is_busy(error):
                raise StoreBusy(f"{self._path}: {error}") from error
            if not connection.in_transaction:  # a statement with OR ROLLBACK
                raise TransactionBroken(f"the whole transaction was rolled back: {error}") from error
            try:
                connection.execute(_UNDO)
                connection.execute(_RELEASE)
            except sqlite3.Error as failure:  # else what was not undone would be committed
                raise TransactionBroken(f"what was written could not be undone: {failure}") from error
            raise

    def _one(self, query: str, values: tuple[Any, ...]) -> Any:
        return self.application.execute(query, values).fetchone()


@contextmanager
def _as_busy(path: str) -> Iterator[None]:
    """Around the receiver's own statements. (What those of ``apply`` raise does not come as far as this.)"""
    try:
        yield
    except sqlite3.OperationalError as error:
        if _is_busy(error) or _code(error) in _CLOSED:
            raise StoreBusy(f"{path}: {error}") from error
        raise


def _is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether the trouble is the file's or the disk's, and may pass."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _code(error: sqlite3.OperationalError) -> int:
    # The low byte is the primary code, whatever the extended one says. An error that the application made has none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
