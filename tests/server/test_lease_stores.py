"""One suite for every store of leases; and what each has of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest
from cases_lease_store import CASES, FIRST, KEY, MOST, Open, becomes, look

from tabhelm.server import LeaseRecord, LeaseStore, MemoryLeaseStore, SqliteLeaseStore, StoreBusy
from tabhelm.server.lease_postgres import PostgresLeaseStore


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
