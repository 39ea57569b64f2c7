"""One transaction of the PostgreSQL store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from tabhelm.fencing.guard import Marks
from tabhelm.server.postgres_connection import COMMIT, LentConnection
from tabhelm.server.postgres_opening import may_pass
from tabhelm.server.store import Key, Known, StoreBusy, TransactionBroken

_SAVE = "SAVEPOINT tabhelm_operation"
_UNDO = "ROLLBACK TO tabhelm_operation"
_RELEASE = "RELEASE tabhelm_operation"


class Again(StoreBusy):
    """The transaction was in another one's way and was rolled back: the same work may succeed at once."""


class PostgresTransaction:
    """What is written waits for ``commit``. ``schema`` is where our tables are, as queries name it."""

    def __init__(self, connection: LentConnection, schema: str) -> None:
        self.application: psycopg.Connection[Any] = connection
        self._connection = connection
        self._schema = schema
        self._cursor = psycopg.Cursor(connection, row_factory=tuple_row)  # whatever rows the application likes

    def commit(self) -> None:
        """Durably.

        Raises:
            StoreBusy: it was rolled back; ``unsure``, if the connection was lost meanwhile.
        """
        try:
            self._cursor.execute(COMMIT)
        except psycopg.OperationalError as error:
            if self._connection.closed:
                raise StoreBusy(f"PostgreSQL was lost during the commit: {error}", unsure=True) from error
            raise _translated(error, self._connection) from error

    def marks(self, key: Key, stream: str) -> Marks | None:
        mark = _digest(*key)
        query = "SELECT epoch, owner FROM {0}.tabhelm_marks WHERE id = %s FOR UPDATE"
        with as_busy(self._connection):
            found = self._execute(query, (mark,)).fetchone()
            if found is None:
                # Whoever comes first makes the row; the others wait here for its end.
                self._execute(
                    "INSERT INTO {0}.tabhelm_marks VALUES (%s, %s, %s, %s, 0, '') ON CONFLICT DO NOTHING", (mark, *key)
                )
                found = self._execute(query, (mark,)).fetchone()
            if found is None or found[0] == 0:
                return None
            # A statement of its own: one that waited for the row would still see the streams of before.
            seen = self._execute(
                "SELECT seq FROM {0}.tabhelm_streams WHERE id = %s AND stream = %s", (mark, stream)
            ).fetchone()
        return Marks(found[0], found[1], {} if seen is None else {stream: seen[0]})

    def raise_marks(self, key: Key, before: Marks | None, after: Marks, stream: str) -> None:
        mark = _digest(*key)
        with as_busy(self._connection):
            if before is None or (before.epoch, before.owner_id) != (after.epoch, after.owner_id):
                if before is not None:
                    self._execute("DELETE FROM {0}.tabhelm_streams WHERE id = %s", (mark,))
                self._execute(
                    "UPDATE {0}.tabhelm_marks SET epoch = %s, owner = %s WHERE id = %s",
                    (after.epoch, after.owner_id, mark),
                )
            if stream in after.streams:
                self._execute(
                    "INSERT INTO {0}.tabhelm_streams VALUES (%s, %s, %s)"
                    " ON CONFLICT (id, stream) DO UPDATE SET seq = excluded.seq",
                    (mark, stream, after.streams[stream]),
                )

    def known(self, subject: str, op_ids: Sequence[str]) -> dict[str, Known]:
        with as_busy(self._connection):
            rows = self._execute(
                "SELECT op_id, digest, status, detail, expires_at FROM {0}.tabhelm_operations WHERE id = ANY(%s)",
                ([_digest(subject, op_id) for op_id in op_ids],),
            ).fetchall()
        return {row[0]: Known(*row[1:]) for row in rows}

    def remember(self, subject: str, decisions: Mapping[str, Known]) -> None:
        rows = [
            (_digest(subject, op_id), op_id, known.digest, known.status, known.detail, known.expires_at)
            for op_id, known in decisions.items()
        ]
        rows.sort()  # all in one order: nobody waits for whoever waits for him
        ids, op_ids, digests, statuses, details, expiries = (list(column) for column in zip(*rows, strict=True))
        try:
            with as_busy(self._connection):
                self._execute(
                    "INSERT INTO {0}.tabhelm_operations (id, subject, op_id, digest, status, detail, expires_at)"
                    " SELECT id, %s, op_id, digest, status, detail, expires_at FROM unnest(%s::bytea[], %s::text[],"
                    " %s::bytea[], %s::text[], %s::text[], %s::float8[])"
                    " AS new (id, op_id, digest, status, detail, expires_at)",
                    (subject, ids, op_ids, digests, statuses, details, expiries),
                )
        except errors.UniqueViolation as error:
            # Sent under two resources at once, the same operation was decided on since our look: look again.
            raise Again("an operation was decided on by two transactions at once") from error

    def newest(self) -> float:
        with as_busy(self._connection):
            found = self._execute("SELECT max(expires_at) FROM {0}.tabhelm_operations", ()).fetchone()
        return found[0] or 0.0 if found is not None else 0.0

    def forget(self, before: float, limit: int) -> int:
        with as_busy(self._connection):
            return self._execute(
                "DELETE FROM {0}.tabhelm_operations WHERE id IN"
                " (SELECT id FROM {0}.tabhelm_operations WHERE expires_at < %s LIMIT %s FOR UPDATE SKIP LOCKED)",
                (before, limit),
            ).rowcount

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with as_busy(self._connection):
            self._cursor.execute(_SAVE)
        try:
            with self._connection.lent():
                yield
            self._release()
        except (StoreBusy, TransactionBroken):
            raise
        except BaseException as error:
            if isinstance(error, psycopg.Error) and isinstance(
                found := _translated(error, self._connection), StoreBusy
            ):
                raise found from error
            self._undo(error)
            raise

    def _execute(self, query: str, values: tuple[Any, ...]) -> psycopg.Cursor[Any]:
        """``{0}`` is where our tables are, whatever ``search_path`` the application has set in the meantime."""
        return self._cursor.execute(query.format(self._schema).encode(self._connection.info.encoding), values)

    def _release(self) -> None:
        try:
            self._cursor.execute(_RELEASE)
        except (errors.InvalidSavepointSpecification, errors.NoActiveSqlTransaction) as error:
            raise TransactionBroken("a statement of apply ended the receiver's transaction or savepoint") from error

    def _undo(self, error: BaseException) -> None:
        # Else psycopg would begin a new transaction for it, and what it says would be about that one.
        if self._connection.info.transaction_status == TransactionStatus.IDLE:
            raise TransactionBroken(f"the whole transaction was rolled back: {error}") from error
        try:
            self._cursor.execute(_UNDO)
            self._cursor.execute(_RELEASE)
        except errors.InvalidSavepointSpecification:
            raise TransactionBroken("a statement of apply ended the receiver's transaction or savepoint") from error


def _digest(*parts: str) -> bytes:
    """A key of one size: an index of PostgreSQL cannot hold the longest texts of senders."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode()
        sha.update(len(data).to_bytes(4, "big"))
        sha.update(data)
    return sha.digest()


@contextmanager
def as_busy(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Around our own statements: what may pass is raised as ``StoreBusy``."""
    try:
        yield
    except psycopg.Error as error:
        if (found := _translated(error, connection)) is error:
            raise
        raise found from error


def _translated(error: psycopg.Error, connection: psycopg.Connection[Any]) -> Exception:
    """The error itself, or what it means where it may pass."""
    if connection.closed or isinstance(error, (errors.DeadlockDetected, errors.SerializationFailure)):
        return Again(f"PostgreSQL: {error}")
    if may_pass(error):
        return StoreBusy(f"PostgreSQL: {error}")
    return error
