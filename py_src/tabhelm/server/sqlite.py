"""The embedded store: marks, known operations and the application's own tables in one SQLite file.

Several processes may use the file at once. Every transaction begins ``IMMEDIATE``, so that it holds the only write lock
before it reads the marks, and is committed with ``synchronous=FULL``: what was answered survives a power cut.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tabhelm.errors import TabhelmError
from tabhelm.fencing.guard import Marks
from tabhelm.server.sqlite_connection import SAVEPOINT, LentConnection
from tabhelm.server.sqlite_thread import SqliteThread, enter_wal, is_busy
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
        self._thread = SqliteThread(
            self._path, self._open, LentConnection.shut, busy_timeout=busy_timeout, max_waiting=max_waiting
        )

    async def run(self, work: Callable[[FenceTransaction[sqlite3.Connection]], R]) -> R:
        """Run ``work`` in one ``IMMEDIATE`` transaction in the store's thread.

        Raises:
            StoreBusy: other writers kept the file locked, too many requests wait, or the file cannot be written.
        """

        def run(connection: LentConnection, deadline: float) -> R:
            connection.execute(f"PRAGMA busy_timeout={_milliseconds(deadline)}")
            connection.execute(_BEGIN)
            try:
                result = work(_Transaction(self._path, connection))
                connection.execute(_COMMIT)
                return result
            finally:
                if connection.in_transaction:
                    connection.execute(_ROLLBACK)

        return await self._thread.run(run)

    async def close(self) -> None:
        """Finish what runs, then close the connection. The next ``run`` opens it again."""
        await self._thread.close()

    def _open(self, deadline: float) -> LentConnection:
        connection = sqlite3.connect(
            self._path,
            timeout=_milliseconds(deadline) / 1000,
            isolation_level=None,
            cached_statements=256,
            factory=LentConnection,
        )
        try:
            enter_wal(connection, deadline)
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


def _milliseconds(deadline: float) -> int:
    """How long there is to wait."""
    return max(0, int((deadline - time.monotonic()) * 1000))


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

    def newest(self) -> float:
        found: float | None = self._one("SELECT max(expires_at) FROM tabhelm_operations", ())[0]
        return found or 0.0

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
            if isinstance(error, sqlite3.OperationalError) and is_busy(error):
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
