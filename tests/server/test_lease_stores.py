"""One suite for every store of leases; and what each has of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cases_lease_store import CASES, FIRST, KEY, MOST, Open, becomes, counted, look

from tabhelm.server import LeaseRecord, LeaseStore, MemoryLeaseStore, SqliteLeaseStore, StoreBusy
from tabhelm.server.lease_postgres import _LOCK, PostgresLeaseStore
from tabhelm.server.sqlite_thread import until
from tabhelm.testing import wait_for
from tabhelm_build.postgres import PostgresServer


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[LeaseStore] = []
    memory = MemoryLeaseStore()
    conninfo = request.getfixturevalue("postgres_database") if request.param == "postgres" else ""

    def store() -> LeaseStore:
        made: Callable[[], LeaseStore] = {
            "memory": lambda: memory,
            "sqlite": lambda: SqliteLeaseStore(tmp_path / "leases.db"),
            "postgres": lambda: PostgresLeaseStore(conninfo, pool_size=2),
        }[request.param]
        opened.append(made())
        return opened[-1]

    yield store
    for each in opened:
        await each.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_lease_store(open_store: Open, case: Callable[[Open], object]) -> None:
    await case(open_store)  # type: ignore[misc]


async def test_a_file_that_somebody_keeps_locked_is_busy_and_goes_on_afterwards(tmp_path: Path) -> None:
    store = SqliteLeaseStore(tmp_path / "leases.db", busy_timeout=0.1)
    await store.change(KEY, becomes(FIRST), MOST)
    other = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        assert await store.change(KEY, look, MOST) == FIRST, "who only looks needs no lock"
        with pytest.raises(StoreBusy):
            await store.change(KEY, becomes(LeaseRecord(2, 1, "b", 15.0, 0.0)), MOST)
        other.execute("ROLLBACK")
    finally:
        other.close()
    assert await store.change(KEY, look, MOST) == FIRST
    await store.close()


async def test_a_database_that_does_not_answer_is_busy() -> None:
    store = PostgresLeaseStore("host=127.0.0.1 port=1 connect_timeout=1", timeout=0.2)
    with pytest.raises(StoreBusy):
        await store.change(KEY, look, MOST)
    await store.close()


async def test_a_database_that_comes_back_is_used_again(postgres_database: str) -> None:
    store = PostgresLeaseStore(postgres_database, pool_size=1)
    await store.change(KEY, becomes(FIRST), MOST)
    async with await psycopg.AsyncConnection.connect(postgres_database, autocommit=True) as other:
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert await store.change(KEY, look, MOST) == FIRST
    await store.close()


async def test_those_who_wait_for_a_locked_file_wait_together(tmp_path: Path) -> None:
    store = SqliteLeaseStore(tmp_path / "leases.db", busy_timeout=0.3)
    await store.domain()
    other = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    asking = (store.change(KEY, becomes(FIRST), MOST) for _ in range(20))
    ends = await asyncio.gather(*asking, return_exceptions=True)
    other.close()
    assert {type(end) for end in ends} == {StoreBusy}
    assert 0.25 < time.monotonic() - began < 5.5, "one after the other it would have been 6 seconds"
    await store.close()


async def test_a_writer_that_hardly_ever_lets_go_does_not_keep_renewals_waiting(tmp_path: Path) -> None:
    """A receiver under load, on the same file."""
    file, stop = tmp_path / "one.db", threading.Event()
    store = SqliteLeaseStore(file)
    await store.domain()

    def write() -> None:
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute("CREATE TABLE busy (x)")
        while not stop.is_set():
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO busy VALUES (1)")
            time.sleep(0.02)
            connection.execute("COMMIT")
            time.sleep(0.002)
        connection.close()

    writing = asyncio.create_task(asyncio.to_thread(write))
    try:
        began = time.monotonic()
        for n in range(1, 31):
            await store.change(KEY, becomes(LeaseRecord(n, 1, "a", 15.0, 0.0)), MOST)
        assert time.monotonic() - began < 6, "a tenth of a second is a long time between two looks"
    finally:
        stop.set()
        await writing
        await store.close()


async def test_who_comes_while_a_file_closes_opens_it_again(tmp_path: Path) -> None:
    store = SqliteLeaseStore(tmp_path / "leases.db")
    await store.change(KEY, becomes(FIRST), MOST)
    entered, go_on = threading.Event(), threading.Event()

    def slow(record: LeaseRecord | None, now: float) -> tuple[LeaseRecord | None, None]:
        entered.set()
        assert go_on.wait(10)
        return record, None

    running = asyncio.create_task(store.change(KEY, slow, MOST))
    await asyncio.to_thread(entered.wait, 10)
    closing, coming = asyncio.create_task(store.close()), asyncio.create_task(store.change(KEY, look, MOST))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(running, closing)
    assert await coming == FIRST
    await store.close()


async def test_those_who_wait_for_a_database_that_is_not_there_wait_together() -> None:
    store = PostgresLeaseStore("host=/nonexistent dbname=none", timeout=0.2)
    began = time.monotonic()
    ends = await asyncio.gather(*(store.domain() for _ in range(30)), return_exceptions=True)
    assert {type(end) for end in ends} == {StoreBusy}
    assert time.monotonic() - began < 4, "one after the other it would have been 6 seconds"
    await store.close()


async def test_commits_are_durable_whatever_the_databases_defaults_say(postgres_database: str) -> None:
    store = PostgresLeaseStore(postgres_database.replace("options='", "options='-c synchronous_commit=off "))
    async with store._connection() as connection:
        assert await (await connection.execute("SHOW synchronous_commit")).fetchone() == ("on",)
    await store.close()


async def test_a_server_that_was_away_for_long_is_used_as_soon_as_it_is_back() -> None:
    """A pool by itself doubles its pauses: after a minute's outage it would look again a minute later."""
    with PostgresServer({"fsync": "off"}) as server:
        store = PostgresLeaseStore(server.conninfo(), timeout=0.5)
        await store.change(KEY, becomes(FIRST), MOST)
        server.stop(signal.SIGQUIT)
        away = time.monotonic() + 8  # it would try after 1, 3, 7 and 15 seconds
        while time.monotonic() < away:
            with pytest.raises(StoreBusy):
                await store.change(KEY, look, MOST)
        server.start()
        back = time.monotonic()
        while True:
            try:
                assert await store.change(KEY, look, MOST) == FIRST
                break
            except StoreBusy:
                assert time.monotonic() - back < 4
        await store.close()


async def test_a_read_only_standby_is_busy(postgres_database: str) -> None:
    first = PostgresLeaseStore(postgres_database)
    await first.change(KEY, becomes(FIRST), MOST)
    await first.close()
    read_only = postgres_database.replace("options='", "options='-c default_transaction_read_only=on ")
    standby = PostgresLeaseStore(read_only)
    with pytest.raises(StoreBusy, match="read-only") as caught:
        await standby.change(KEY, look, MOST)
    assert not caught.value.unsure
    await standby.close()


async def test_a_server_that_becomes_read_only_is_busy(postgres_database: str) -> None:
    store = PostgresLeaseStore(postgres_database, pool_size=1)
    await store.change(KEY, becomes(FIRST), MOST)
    async with store._connection() as connection:
        await connection.execute("SET default_transaction_read_only = on")
    assert await store.change(KEY, look, MOST) == FIRST
    with pytest.raises(StoreBusy, match="read-only") as caught:
        await store.change(KEY, becomes(LeaseRecord(2, 1, "b", 15.0, 0.0)), MOST)
    assert not caught.value.unsure
    await store.close()


async def test_a_connection_lost_before_the_commit_leaves_no_doubt(postgres_database: str) -> None:
    """Nothing was written: the database undoes what was not committed."""
    store = PostgresLeaseStore(postgres_database, pool_size=1)
    await store.change(KEY, becomes(FIRST), MOST)
    async with store._connection() as connection:
        line = socket.socket(fileno=os.dup(connection.pgconn.socket))
    calls = 0

    def decide(record: LeaseRecord | None, now: float) -> tuple[LeaseRecord | None, None]:
        nonlocal calls
        calls += 1
        if calls == 2:  # inside the transaction
            line.shutdown(socket.SHUT_RDWR)
        return LeaseRecord(2, 1, "b", 15.0, now), None

    with pytest.raises(StoreBusy) as caught:
        await store.change(KEY, decide, MOST)
    line.close()
    assert calls == 2 and not caught.value.unsure
    assert await store.change(KEY, look, MOST) == FIRST
    await store.close()


async def test_a_connection_lost_during_the_commit_leaves_the_doubt_that_there_is(postgres_database: str) -> None:
    store = PostgresLeaseStore(postgres_database, pool_size=1)
    await store.change(KEY, becomes(FIRST), MOST)
    async with store._connection() as connection:  # a trigger that ends its own session, at the commit alone
        await connection.execute(
            "CREATE FUNCTION fatal() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        await connection.execute(
            "CREATE CONSTRAINT TRIGGER fatal AFTER UPDATE ON tabhelm_leases"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fatal()"
        )
    with pytest.raises(StoreBusy) as caught:
        await store.change(KEY, becomes(LeaseRecord(2, 1, "b", 15.0, 0.0)), MOST)
    assert caught.value.unsure
    await store.close()


async def test_a_server_that_cannot_be_reached_leaves_no_doubt() -> None:
    store = PostgresLeaseStore("host=127.0.0.1 port=1 connect_timeout=1", timeout=0.2)
    with pytest.raises(StoreBusy) as caught:
        await store.change(KEY, look, MOST)
    assert not caught.value.unsure
    await store.close()


async def test_who_loses_the_race_for_the_last_lease_is_told_who_has_it(postgres_database: str) -> None:
    """Not that there are too many: the one that was just made is its own."""
    stores = [PostgresLeaseStore(postgres_database, pool_size=1) for _ in range(3)]
    for store in stores:
        await store.domain()
    with psycopg.connect(postgres_database) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", (KEY.subject, _LOCK))
        asking = [asyncio.create_task(store.change(KEY, counted, 1)) for store in stores]
        await wait_for(lambda: _waiting(postgres_database) == 3, what="all of them to have found no lease")
    ends = await asyncio.gather(*asking, return_exceptions=True)
    for store in stores:
        await store.close()
    assert sorted(ends, key=str) == [1, 2, 3]


def _waiting(conninfo: str) -> int:
    with psycopg.connect(conninfo) as connection:
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        found = connection.execute(query).fetchone()
    assert found is not None
    return int(found[0])


async def test_no_more_requests_wait_for_a_locked_file_than_may(tmp_path: Path) -> None:
    store = SqliteLeaseStore(tmp_path / "leases.db", busy_timeout=20, max_waiting=2)
    await store.domain()
    other = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        waiting = [asyncio.create_task(store.change(KEY, counted, MOST)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StoreBusy, match="2 requests wait"):
            await store.change(KEY, look, MOST)
        other.execute("ROLLBACK")
    finally:
        other.close()
    assert sorted(await asyncio.gather(*waiting)) == [1, 2]
    await store.close()


async def test_no_more_requests_wait_for_a_connection_than_may(postgres_database: str) -> None:
    store = PostgresLeaseStore(postgres_database, pool_size=1, timeout=20, max_waiting=1)
    async with store._connection():
        waiting = asyncio.create_task(store.change(KEY, counted, MOST))
        await asyncio.sleep(0.01)  # let it queue
        with pytest.raises(StoreBusy) as caught:
            await store.change(KEY, look, MOST)
        assert not caught.value.unsure
    assert await waiting == 1
    await store.close()


async def test_an_error_of_pythons_own_is_no_busy_file(tmp_path: Path) -> None:
    """It has no code of SQLite's, and comes out as it is."""
    store = SqliteLeaseStore(tmp_path / "leases.db")

    def fail(record: LeaseRecord | None, now: float) -> tuple[LeaseRecord | None, None]:
        raise sqlite3.OperationalError("of Python's own")

    with pytest.raises(sqlite3.OperationalError, match="own"):
        await store.change(KEY, fail, MOST)
    with pytest.raises(sqlite3.OperationalError, match="own"):
        until(time.monotonic() + 5, _raise)
    await store.close()


def _raise() -> None:
    raise sqlite3.OperationalError("of Python's own")


@pytest.mark.parametrize("wrong", [{"pool_size": 0}, {"timeout": float("nan")}, {"max_waiting": 0}])
def test_limits_that_mean_nothing_to_postgresql(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"{name} .* is not valid: at least"):
        PostgresLeaseStore("", **wrong)


@pytest.mark.parametrize("wrong", [{"busy_timeout": -1.0}, {"max_waiting": 0}])
def test_limits_that_mean_nothing_to_sqlite(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"{name} .* is not valid: at least"):
        SqliteLeaseStore("leases.db", **wrong)
