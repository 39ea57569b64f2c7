"""One suite for every store of leases; and what each has of its own."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest
from cases_lease_store import CASES, FIRST, KEY, MOST, Open, becomes, look

from tabhelm.server import LeaseRecord, LeaseStore, MemoryLeaseStore, SqliteLeaseStore, StoreBusy
from tabhelm.server.lease_postgres import PostgresLeaseStore
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
    assert 0.25 < time.monotonic() - began < 3, "one after the other it would have been 6 seconds"
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
