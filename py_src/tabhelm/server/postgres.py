"""The store for more than one machine: marks, known operations and the application's own tables in one PostgreSQL.

The row of a (subject, domain, resource) is locked from the look at its marks to the commit, so that one resource's
writes come one after the other and those of different resources run at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import psycopg_pool
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from tabhelm.fencing.guard import Marks
from tabhelm.server.postgres_connection import COMMIT, LentConnection, create_tables, prepare
from tabhelm.server.store import FenceTransaction, Key, Known, R, StoreBusy, TransactionBroken

_ATTEMPTS = 5
_LEAST_PATIENCE = 1.0
_SAVE = "SAVEPOINT tabhelm_operation"
_UNDO = "ROLLBACK TO tabhelm_operation"
_RELEASE = "RELEASE tabhelm_operation"
_BUSY = ("53", "57P", "58", "55P03", "25006", "08")
"""Resources used up, server shutting down, system error, lock timeout, read-only standby, connection lost."""


class PostgresFenceStore:
    """A PostgreSQL database. ``apply`` gets a ``psycopg.Connection``, inside the receiver's transaction.

    ``conninfo`` is a connection string or URL (``""``: all from the environment); ``connect`` are more arguments of
    ``psycopg.connect``, as ``{"row_factory": dict_row}``. ``setup`` is called once, inside a transaction in which no
    other process is at it: create the application's tables there (``IF NOT EXISTS``). ``pool_size`` requests are
    worked on at once, each with a thread and a connection; ``busy_timeout`` is how many seconds one waits for a
    connection, and for each lock; ``max_waiting`` is how many requests may wait in this process. Beyond that the answer
    is 503. Commits are synchronous.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        setup: Callable[[psycopg.Connection[Any]], object] | None = None,
        pool_size: int = 8,
        busy_timeout: float = 5.0,
        max_waiting: int = 256,
        connect: Mapping[str, Any] | None = None,
    ) -> None:
        if pool_size < 1:
            raise ValueError(f"pool_size {pool_size!r} is not valid: at least 1 connection")
        self._conninfo = conninfo
        self._setup = setup
        self._pool_size = pool_size
        self._busy_timeout = busy_timeout
        self._max_waiting = max_waiting
        self._connect = {"fallback_application_name": "tabhelm", **(connect or {}), "autocommit": False}
        self._waiting = 0
        # Threads and connections are made at first use, so after any fork.
        self._threads: ThreadPoolExecutor | None = None
        self._pool: psycopg_pool.ConnectionPool[LentConnection] | None = None
        self._opening = threading.Lock()
        self._in_vain: tuple[float, StoreBusy] | None = None
        self._schema = ""

    async def run(self, work: Callable[[FenceTransaction[psycopg.Connection[Any]]], R]) -> R:
        """Run ``work`` in one transaction in one of the store's threads.

        Raises:
            StoreBusy: the database is down or full, others kept a lock, or too many requests wait.
        """
        if self._waiting >= self._max_waiting:
            raise StoreBusy(f"{self._waiting} requests wait for PostgreSQL already")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._pool_size, thread_name_prefix="tabhelm-store")
        self._waiting += 1
        deadline = time.monotonic() + self._busy_timeout
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work, deadline)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Finish what runs, then close the connections. The next ``run`` opens them again."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(self._close, threads)

    # -- in the store's threads ----------------------------------------------------------------------------------------

    def _run(self, work: Callable[[FenceTransaction[psycopg.Connection[Any]]], R], deadline: float) -> R:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._attempt(work, max(_LEAST_PATIENCE, deadline - time.monotonic()))
            except _Again as error:
                if attempt == _ATTEMPTS or time.monotonic() > deadline:
                    raise StoreBusy(str(error)) from error
            # Else the one that was undone may take its first lock back before the other one has woken up.
            time.sleep(random.uniform(0.01, 0.02) * 2**attempt)
        raise AssertionError("unreachable")

    def _attempt(self, work: Callable[[FenceTransaction[psycopg.Connection[Any]]], R], patience: float) -> R:
        pool = self._opened(patience)
        connection = _connection(pool, patience)
        try:
            transaction = _Transaction(connection, self._schema)
            result = work(transaction)
            transaction.commit()
            return result
        finally:
            self._give_back(pool, connection)

    def _give_back(self, pool: psycopg_pool.ConnectionPool[LentConnection], connection: LentConnection) -> None:
        """Whatever has become of it: a pool waits for ever for what it does not get back."""
        try:
            if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                connection.rollback()
        except psycopg.Error:
            pass  # it was lost since the last statement, so the database has undone it
        finally:
            lost = connection.closed
            pool.putconn(connection)
            if lost:
                pool.check()  # the others that idle in it are probably lost as well

    def _opened(self, patience: float) -> psycopg_pool.ConnectionPool[LentConnection]:
        came = time.monotonic()
        with self._opening:
            if self._in_vain is not None and self._in_vain[0] >= came:
                # Those who came while somebody else tried have waited with him: they do not try one after the other.
                raise StoreBusy(str(self._in_vain[1])) from self._in_vain[1]
            if self._pool is None:
                pool = psycopg_pool.ConnectionPool(
                    self._conninfo,
                    connection_class=LentConnection,
                    kwargs=self._connect,
                    configure=lambda connection: prepare(connection, self._busy_timeout),
                    min_size=min(2, self._pool_size),
                    max_size=self._pool_size,
                    reconnect_timeout=self._busy_timeout,  # then the next request tries at once, however long it was
                    name="tabhelm-store",
                    open=False,
                )
                pool.open()
                try:
                    self._set_up(pool, patience)
                except BaseException as error:
                    pool.close()
                    if isinstance(error, StoreBusy):
                        self._in_vain = time.monotonic(), error
                    raise
                self._pool = pool
            return self._pool

    def _set_up(self, pool: psycopg_pool.ConnectionPool[LentConnection], patience: float) -> None:
        connection = _connection(pool, patience)
        try:
            with _as_busy(connection):
                self._schema = create_tables(connection)
                if self._setup is not None:
                    with connection.lent():
                        self._setup(connection)
                connection.commit()
        finally:
            self._give_back(pool, connection)

    def _close(self, threads: ThreadPoolExecutor) -> None:
        threads.shutdown()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


class _Again(StoreBusy):
    """The transaction was in another one's way and was rolled back: the same work may succeed at once."""


class _Transaction:
    def __init__(self, connection: LentConnection, schema: str) -> None:
        self.application: psycopg.Connection[Any] = connection
        self._connection = connection
        self._schema = schema
        self._cursor = psycopg.Cursor(connection, row_factory=tuple_row)  # whatever rows the application likes

    def commit(self) -> None:
        try:
            self._cursor.execute(COMMIT)
        except psycopg.OperationalError as error:
            if self._connection.closed:
                raise StoreBusy(f"PostgreSQL was lost during the commit: {error}", unsure=True) from error
            raise _translated(error, self._connection) from error

    def marks(self, key: Key, stream: str) -> Marks | None:
        mark = _digest(*key)
        query = "SELECT epoch, owner FROM {0}.tabhelm_marks WHERE id = %s FOR UPDATE"
        with _as_busy(self._connection):
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
        with _as_busy(self._connection):
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
        with _as_busy(self._connection):
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
            with _as_busy(self._connection):
                self._execute(
                    "INSERT INTO {0}.tabhelm_operations (id, subject, op_id, digest, status, detail, expires_at)"
                    " SELECT id, %s, op_id, digest, status, detail, expires_at FROM unnest(%s::bytea[], %s::text[],"
                    " %s::bytea[], %s::text[], %s::text[], %s::float8[])"
                    " AS new (id, op_id, digest, status, detail, expires_at)",
                    (subject, ids, op_ids, digests, statuses, details, expiries),
                )
        except errors.UniqueViolation as error:
            # Sent under two resources at once, the same operation was decided on since our look: look again.
            raise _Again("an operation was decided on by two transactions at once") from error

    def forget(self, before: float, limit: int) -> int:
        with _as_busy(self._connection):
            return self._execute(
                "DELETE FROM {0}.tabhelm_operations WHERE id IN"
                " (SELECT id FROM {0}.tabhelm_operations WHERE expires_at < %s LIMIT %s FOR UPDATE SKIP LOCKED)",
                (before, limit),
            ).rowcount

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with _as_busy(self._connection):
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


def _connection(pool: psycopg_pool.ConnectionPool[LentConnection], patience: float) -> LentConnection:
    try:
        return pool.getconn(timeout=patience)
    except (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed) as error:
        raise StoreBusy(f"no connection to PostgreSQL within {patience:.1f} s: {error}") from error


def _digest(*parts: str) -> bytes:
    """A key of one size: an index of PostgreSQL cannot hold the longest texts of senders."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode()
        sha.update(len(data).to_bytes(4, "big"))
        sha.update(data)
    return sha.digest()


@contextmanager
def _as_busy(connection: psycopg.Connection[Any]) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if (found := _translated(error, connection)) is error:
            raise
        raise found from error


def _translated(error: psycopg.Error, connection: psycopg.Connection[Any]) -> Exception:
    """The error itself, or what it means where it may pass."""
    if connection.closed or isinstance(error, (errors.DeadlockDetected, errors.SerializationFailure)):
        return _Again(f"PostgreSQL: {error}")
    if (error.sqlstate or "").startswith(_BUSY):
        return StoreBusy(f"PostgreSQL: {error}")
    return error
