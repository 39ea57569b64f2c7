"""What the PostgreSQL store has of its own: parallel resources, locks, deadlocks, lost connections."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

import psycopg
import pytest
from databases import create_tables, insert
from psycopg.rows import dict_row
from receiver_kit import POSTGRES, Client, MakeClient, operation, token

from tabhelm.fencing.guard import Marks
from tabhelm.server import Effect, FenceTransaction, PostgresFenceStore, StoreBusy
from tabhelm.server.store import Key, Known
from tabhelm.testing import wait_for
from tabhelm_build.postgres import PostgresServer

Transaction = FenceTransaction[Any]
ONE, TWO = Key("s", "d", "app:one"), Key("s", "d", "app:two")


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresFenceStore]:
    store = PostgresFenceStore(postgres_database, setup=create_tables, busy_timeout=20)
    yield store
    await store.close()


def write(key: Key, transaction: Transaction) -> None:
    marks = transaction.marks(key, "s")
    seq = marks.streams["s"] + 1 if marks else 1
    transaction.raise_marks(key, marks, Marks(1, "a", {"s": seq}), "s")


def waiting(conninfo: str) -> int:
    """How many sessions wait for a lock."""
    with psycopg.connect(conninfo) as connection:
        found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
    assert found is not None
    return int(found[0])


async def refused(running: Awaitable[None]) -> bool:
    try:
        await running
    except StoreBusy:
        return True
    return False


async def test_resources_are_written_at_once(store: PostgresFenceStore) -> None:
    """Each waits inside its transaction for all the others to be inside theirs."""
    together = threading.Barrier(8)

    def work(key: Key, transaction: Transaction) -> None:
        write(key, transaction)
        together.wait(30)

    await asyncio.gather(*(store.run(partial(work, Key("s", "d", f"app:{n}"))) for n in range(8)))


async def test_one_resource_waits_for_its_turn(store: PostgresFenceStore, postgres_database: str) -> None:
    entered, go_on, order = threading.Event(), threading.Event(), list[str]()

    def slow(transaction: Transaction) -> None:
        write(ONE, transaction)
        entered.set()
        assert go_on.wait(30)
        order.append("first")

    def second(transaction: Transaction) -> None:
        write(ONE, transaction)
        order.append("second")

    await store.run(partial(write, ONE))
    first = asyncio.create_task(store.run(slow))
    await asyncio.to_thread(entered.wait, 30)
    other = asyncio.create_task(store.run(second))
    await wait_for(lambda: waiting(postgres_database) == 1, what="the other to wait")
    await store.run(partial(write, TWO))  # meanwhile others go on
    go_on.set()
    await asyncio.gather(first, other)
    assert order == ["first", "second"]
    assert await store.run(lambda transaction: transaction.marks(ONE, "s")) == Marks(1, "a", {"s": 3})


async def test_a_lock_that_somebody_keeps_is_busy(postgres_database: str) -> None:
    store = PostgresFenceStore(postgres_database, busy_timeout=0.2)
    await store.run(partial(write, ONE))
    with psycopg.connect(postgres_database) as other:
        other.execute("SELECT * FROM tabhelm_marks FOR UPDATE")
        began = time.monotonic()
        ends = await asyncio.gather(*(store.run(partial(write, ONE)) for _ in range(8)), return_exceptions=True)
        assert {type(end) for end in ends} == {StoreBusy}
        assert time.monotonic() - began < 10, "they wait together"
    await store.run(partial(write, ONE))
    await store.close()


async def test_a_deadlock_of_the_application_is_resolved(postgres_database: str) -> None:
    """Two requests lock two rows in opposite orders: PostgreSQL undoes one of them, and it is done again."""
    conninfo = postgres_database.replace("options='", "options='-c deadlock_timeout=50ms ")
    store = PostgresFenceStore(conninfo, setup=create_tables, busy_timeout=20)
    together, tries = threading.Barrier(2), list[str]()

    def setup(transaction: Transaction) -> None:
        transaction.application.execute("INSERT INTO total VALUES (1), (2)")

    def work(key: Key, first: int, second: int, transaction: Transaction) -> None:
        write(key, transaction)
        tries.append(key.resource)
        with transaction.savepoint():
            transaction.application.execute("UPDATE total SET n = n + 10 WHERE n %% 10 = %s", (first,))
            if len(tries) <= 2:
                together.wait(30)
            transaction.application.execute("UPDATE total SET n = n + 10 WHERE n %% 10 = %s", (second,))

    await store.run(setup)
    await asyncio.gather(store.run(partial(work, ONE, 1, 2)), store.run(partial(work, TWO, 2, 1)))
    assert len(tries) > 2
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SELECT n FROM total ORDER BY n").fetchall() == [(21,), (22,)]
    await store.close()


async def test_commits_are_durable_and_see_what_was_committed(postgres_database: str) -> None:
    """Whatever the database's defaults say."""
    defaults = "-c synchronous_commit=off -c default_transaction_isolation=serializable"
    store = PostgresFenceStore(postgres_database.replace("options='", f"options='{defaults} "))

    def settings(transaction: Transaction) -> list[str]:
        names = ("synchronous_commit", "transaction_isolation")
        return [transaction.application.execute(f"SHOW {name}").fetchone()[0] for name in names]

    assert await store.run(settings) == ["on", "read committed"]
    await store.close()


async def test_how_the_application_likes_its_rows_is_its_own_matter(postgres_database: str) -> None:
    store = PostgresFenceStore(postgres_database, connect={"row_factory": dict_row})
    await store.run(partial(write, ONE))

    def work(transaction: Transaction) -> object:
        write(ONE, transaction)
        return transaction.application.execute("SELECT 1 AS one").fetchone()

    assert await store.run(work) == {"one": 1}
    await store.close()


async def test_a_session_that_was_ended_is_replaced(store: PostgresFenceStore, postgres_database: str) -> None:
    await asyncio.gather(*(store.run(partial(write, ONE)) for _ in range(8)))
    with psycopg.connect(postgres_database, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tabhelm'")
    await store.run(partial(write, ONE))
    assert await store.run(lambda transaction: transaction.marks(ONE, "s")) == Marks(1, "a", {"s": 9})


async def test_a_session_that_ends_during_the_work_leaves_nothing_and_is_done_again(
    store: PostgresFenceStore,
) -> None:
    tries = 0

    def work(transaction: Transaction) -> None:
        nonlocal tries
        tries += 1
        write(ONE, transaction)
        with transaction.savepoint():
            insert(transaction.application, "a")
            if tries == 1:
                transaction.application.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    await store.run(work)
    assert tries == 2
    assert await store.run(lambda transaction: transaction.marks(ONE, "s")) == Marks(1, "a", {"s": 1})


@POSTGRES
async def test_a_commit_of_unknown_outcome_is_told_as_such(client: Client) -> None:
    await client.statuses(token(1, 1), operation("a"))
    with psycopg.connect(client.database.address) as other:
        other.execute(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON applied DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW WHEN (NEW.op_id = 'b') EXECUTE FUNCTION die()"
        )
    answer = await client.batch(token(1, 2), operation("b"))
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:tabhelm:busy")
    assert "may have been applied" in answer.json()["detail"]
    assert await client.statuses(token(1, 2), operation("c")) == ["committed"]


async def test_a_server_that_crashes_and_comes_back() -> None:
    with PostgresServer({"fsync": "off"}) as server:
        store = PostgresFenceStore(server.conninfo(), busy_timeout=0.5)
        await store.run(partial(write, ONE))
        server.stop(signal.SIGQUIT)
        with pytest.raises(StoreBusy):
            await store.run(partial(write, ONE))
        server.start()
        async with asyncio.timeout(30):
            while await refused(store.run(partial(write, ONE))):  # until the pool has tried again
                pass
        assert await store.run(lambda transaction: transaction.marks(ONE, "s")) == Marks(1, "a", {"s": 2})
        await store.close()


async def test_a_server_that_was_never_there_is_busy() -> None:
    store = PostgresFenceStore("host=/nonexistent dbname=none", busy_timeout=0.2)
    with pytest.raises(StoreBusy, match="no connection to PostgreSQL"):
        await store.run(lambda transaction: None)
    await store.close()


async def test_a_read_only_standby_is_busy(store: PostgresFenceStore, postgres_database: str) -> None:
    await store.run(partial(write, ONE))
    standby = postgres_database.replace("options='", "options='-c default_transaction_read_only=on ")
    other = PostgresFenceStore(standby)
    with pytest.raises(StoreBusy, match="read-only"):
        await other.run(partial(write, ONE))
    await other.close()


async def test_two_that_forget_at_once_do_not_wait_for_each_other(store: PostgresFenceStore) -> None:
    decisions = {f"{n}": Known(b"", "committed", "", 1.0) for n in range(20)}
    await store.run(lambda transaction: transaction.remember("s", decisions))
    together = threading.Barrier(2)

    def work(transaction: Transaction) -> int:
        deleted = transaction.forget(2.0, 10)
        together.wait(30)
        return deleted

    assert await asyncio.gather(store.run(work), store.run(work)) == [10, 10]


@POSTGRES
async def test_constraint_that_is_checked_at_the_commit_fails_the_request(make_client: MakeClient) -> None:
    def apply(effect: Effect, connection: Any) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS only_one (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO only_one VALUES (1)")

    client = make_client(apply=apply)
    assert await client.statuses(token(1, 1), operation("a")) == ["committed"]
    answer = await client.batch(token(1, 2), operation("b"))
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:tabhelm:failed")
    assert client.query("SELECT op_id FROM tabhelm_operations") == [("a",)]


def test_options_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="pool_size"):
        PostgresFenceStore("", pool_size=0)


async def test_a_connection_lost_after_its_last_statement_is_given_back_all_the_same(postgres_database: str) -> None:
    """The rollback fails then. As many of these as there are connections, and nobody would ever get one again."""
    store = PostgresFenceStore(postgres_database, pool_size=2, busy_timeout=5)

    def work(transaction: Transaction) -> None:
        write(ONE, transaction)
        with psycopg.connect(postgres_database, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 20000)", (transaction.application.info.backend_pid,))
        raise LookupError("changed my mind")

    for _ in range(3):
        with pytest.raises(LookupError):
            await store.run(work)
    await store.run(partial(write, ONE))
    assert await store.run(lambda transaction: transaction.marks(ONE, "s")) == Marks(1, "a", {"s": 1})
    await store.close()


async def test_those_who_wait_for_a_server_that_is_not_there_wait_together() -> None:
    """Else the last of them would be answered after as many timeouts as there are requests."""
    store = PostgresFenceStore("host=/nonexistent dbname=none", busy_timeout=0.2)
    began = time.monotonic()
    ends = await asyncio.gather(*(store.run(lambda transaction: None) for _ in range(8)), return_exceptions=True)
    assert {type(end) for end in ends} == {StoreBusy}
    assert time.monotonic() - began < 5, "one after the other it would have been 8 seconds"
    await store.close()


@pytest.mark.parametrize("scope", ["LOCAL", "SESSION"])
@POSTGRES
async def test_where_the_application_looks_for_its_tables_is_its_own_matter(
    make_client: MakeClient, scope: str
) -> None:
    def apply(effect: Effect, connection: Any) -> None:
        connection.execute(f"SET {scope} search_path TO elsewhere")

    client = make_client(apply=apply, store={"pool_size": 1})
    assert await client.statuses(token(1, 1), operation("a"), operation("b")) == ["committed", "committed"]
    assert (await client.batch(token(1, 1), operation("c"))).status_code == 409
    assert await client.statuses(token(1, 2), operation("b")) == ["duplicate"]
