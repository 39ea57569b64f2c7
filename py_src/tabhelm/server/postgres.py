"""The store for more than one machine: marks, known operations and the application's own tables in one PostgreSQL.

The row of a (subject, domain, resource) is locked from the look at its marks to the commit, so that one resource's
writes come one after the other and those of different resources run at once.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import psycopg_pool
from psycopg.pq import TransactionStatus

from tabhelm.server.arguments import checked
from tabhelm.server.postgres_connection import LentConnection, create_tables, prepare
from tabhelm.server.postgres_opening import InVain
from tabhelm.server.postgres_transaction import Again, PostgresTransaction, as_busy
from tabhelm.server.store import FenceTransaction, R, StoreBusy

_ATTEMPTS = 5
_LEAST_PATIENCE = 1.0


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
        self._conninfo = conninfo
        self._setup = setup
        self._pool_size = checked("pool_size", pool_size, 1, "connection")
        self._busy_timeout = checked("busy_timeout", busy_timeout, 0, "seconds")
        self._max_waiting = checked("max_waiting", max_waiting, 1, "request")
        self._connect = {"fallback_application_name": "tabhelm", **(connect or {}), "autocommit": False}
        self._waiting = 0
        # Threads and connections are made at first use, so after any fork.
        self._threads: ThreadPoolExecutor | None = None
        self._pool: psycopg_pool.ConnectionPool[LentConnection] | None = None
        self._opening = threading.Lock()
        self._in_vain = InVain()
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
            except Again as error:
                if attempt == _ATTEMPTS or time.monotonic() > deadline:
                    raise StoreBusy(str(error)) from error
            # Else the one that was undone may take its first lock back before the other one has woken up.
            time.sleep(random.uniform(0.01, 0.02) * 2**attempt)
        raise AssertionError("unreachable")

    def _attempt(self, work: Callable[[FenceTransaction[psycopg.Connection[Any]]], R], patience: float) -> R:
        pool = self._opened(patience)
        connection = _connection(pool, patience)
        try:
            transaction = PostgresTransaction(connection, self._schema)
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
            self._in_vain.check(came)
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
                        self._in_vain.note(error)
                    raise
                self._pool = pool
            return self._pool

    def _set_up(self, pool: psycopg_pool.ConnectionPool[LentConnection], patience: float) -> None:
        connection = _connection(pool, patience)
        try:
            with as_busy(connection):
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


def _connection(pool: psycopg_pool.ConnectionPool[LentConnection], patience: float) -> LentConnection:
    try:
        return pool.getconn(timeout=patience)
    except (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed) as error:
        raise StoreBusy(f"no connection to PostgreSQL within {patience:.1f} s: {error}") from error
