"""Leases in PostgreSQL: for a service of several machines. All times are the database's, so theirs are never compared.

A change locks its row. A commit must be durable before it is told (``synchronous_commit``, which is on by default): a
replica that takes over without the last of them would give epochs again. Needs psycopg 3 and psycopg_pool (the extra
``postgres``).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from tabhelm.server.arguments import checked
from tabhelm.server.lease_store import Decide, LeaseKey, LeaseRecord, TooManyLeases
from tabhelm.server.postgres_opening import InVain, may_pass, settings
from tabhelm.server.store import R, StoreBusy

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
_LOCK = 0x7461_6268_656C_6D1E
"""Two processes that create the same table at once may both fail: they do it one after the other."""
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS tabhelm_lease_domain (one int PRIMARY KEY CHECK (one = 1), domain text NOT NULL)",
    """CREATE TABLE IF NOT EXISTS tabhelm_leases (
        subject text NOT NULL, resource text NOT NULL, epoch bigint NOT NULL, seq bigint NOT NULL,
        holder text, ttl double precision NOT NULL, renewed_at double precision NOT NULL,
        PRIMARY KEY (subject, resource)
    )""",
)
_READ = "SELECT epoch, seq, holder, ttl, renewed_at FROM tabhelm_leases WHERE subject = %s AND resource = %s"
_NOW = "SELECT extract(epoch FROM clock_timestamp())::double precision"


class PostgresLeaseStore:
    """``conninfo`` as psycopg takes it. ``pool_size``: connections at most; ``timeout``: seconds that a request waits
    for one of them, or for a lock; ``max_waiting``: how many requests may wait for a connection in this process."""

    def __init__(self, conninfo: str, *, pool_size: int = 4, timeout: float = 5.0, max_waiting: int = 256) -> None:
        self._conninfo = conninfo
        self._pool_size = checked("pool_size", pool_size, 1, "connection")
        self._timeout = checked("timeout", timeout, 0, "seconds")
        self._max_waiting = checked("max_waiting", max_waiting, 1, "request")
        self._domain = ""
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._opening = asyncio.Lock()
        self._in_vain = InVain()

    async def domain(self) -> str:
        if not self._domain:
            async with self._connection():
                pass
        return self._domain

    async def change(self, key: LeaseKey, decide: Decide[R], most: int) -> R:
        async with self._connection() as connection:
            before = await _record(connection, key, _READ)
            after, result = decide(before, await _now(connection))
            if after == before:
                return result  # who only looks locks nothing
            async with _transaction(connection):
                if before is None:
                    # Two that ask for a new lease at once: the first one's row makes the second one wait.
                    before = await _begin(connection, key, most)
                else:
                    before = await _record(connection, key, f"{_READ} FOR UPDATE")
                after, result = decide(before, await _now(connection))
                if after is not None and after != before:
                    await connection.execute(
                        "UPDATE tabhelm_leases SET epoch = %s, seq = %s, holder = %s, ttl = %s, renewed_at = %s"
                        " WHERE subject = %s AND resource = %s",
                        (after.epoch, after.seq, after.holder, after.ttl, after.renewed_at, *key),
                    )
            return result

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            pool = self._pool or await self._open()
            async with pool.connection() as connection:
                yield connection
        except psycopg.Error as error:
            if not _is_busy(error):
                raise
            raise _busy(error) from error

    async def _open(self) -> AsyncConnectionPool[Connection]:
        came = time.monotonic()
        async with self._opening:
            if self._pool is not None:
                return self._pool
            self._in_vain.check(came)
            pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
                self._conninfo,
                min_size=1,
                max_size=self._pool_size,
                max_waiting=self._max_waiting,
                timeout=self._timeout,
                open=False,
                configure=self._configure,
                check=AsyncConnectionPool.check_connection,
                reconnect_timeout=self._timeout,  # then the next request tries at once, however long it was
                kwargs={"autocommit": True},
            )
            await pool.open()
            try:
                async with pool.connection() as connection:
                    self._domain = await _set_up(connection)
            except BaseException as error:
                await pool.close()
                if isinstance(error, psycopg.Error) and _is_busy(error):
                    self._in_vain.note(_busy(error))
                raise
            self._pool = pool
            return pool

    async def _configure(self, connection: Connection) -> None:
        for statement, values in settings(self._timeout):
            await connection.execute(statement, values)


def _is_busy(error: psycopg.Error) -> bool:
    """Unreachable, restarting, locked for too long, full, read-only: it may pass."""
    return isinstance(error, psycopg.OperationalError) or may_pass(error)


def _busy(error: psycopg.Error) -> StoreBusy:
    return StoreBusy(f"the database of the leases: {type(error).__name__}: {error}")


@asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[None]:
    """Committed at the end.

    Raises:
        StoreBusy: ``unsure``, the connection was lost during the commit. Lost before it, nothing was written.
    """
    committing = False
    try:
        async with connection.transaction():
            yield
            committing = True
    except psycopg.OperationalError as error:
        if committing and connection.closed:
            raise StoreBusy(f"the database of the leases was lost during the commit: {error}", unsure=True) from error
        raise


async def _set_up(connection: Connection) -> str:
    """Create what is missing; returns the domain."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        for statement in _SCHEMA:
            await connection.execute(statement)
        await connection.execute(
            "INSERT INTO tabhelm_lease_domain VALUES (1, %s) ON CONFLICT DO NOTHING", (secrets.token_hex(16),)
        )
        row = await (await connection.execute("SELECT domain FROM tabhelm_lease_domain")).fetchone()
    assert row is not None
    return str(row[0])


async def _begin(connection: Connection, key: LeaseKey, most: int) -> LeaseRecord | None:
    """Make the row of a new lease, or wait for whoever is making it. ``None``: it is new, and to be written."""
    # A subject's new leases come one after the other: two that count at once would both find room for one more.
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", (key.subject, _LOCK))
    inserting = await connection.execute(
        "INSERT INTO tabhelm_leases VALUES (%s, %s, 0, 0, NULL, 0, 0) ON CONFLICT DO NOTHING", key
    )
    if inserting.rowcount == 0:
        return await _record(connection, key, f"{_READ} FOR UPDATE")
    counting = await connection.execute("SELECT count(*) FROM tabhelm_leases WHERE subject = %s", (key.subject,))
    counted = await counting.fetchone()
    if counted is not None and counted[0] > most:  # with this one, which the end of the transaction takes back
        raise TooManyLeases(f"{most} leases, and no more, may be held by one subject")
    return None


async def _record(connection: Connection, key: LeaseKey, query: str) -> LeaseRecord | None:
    row = await (await connection.execute(query, key)).fetchone()
    return None if row is None else LeaseRecord(*row)


async def _now(connection: Connection) -> float:
    row = await (await connection.execute(_NOW)).fetchone()
    assert row is not None
    return float(row[0])
