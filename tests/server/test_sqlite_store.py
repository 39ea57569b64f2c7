"""The SQLite store by itself."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from databases import create_tables
from receiver_kit import SQLITE, MakeClient, operation, token

from tabhelm.errors import TabhelmError
from tabhelm.server import Effect, FenceTransaction, SqliteFenceStore, StoreBusy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "effects.db"


async def test_durability_settings(file: Path) -> None:
    store = SqliteFenceStore(file)

    def settings() -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    connection = await store.run(lambda transaction: transaction.application)
    found = await store.run(lambda transaction: settings())
    await store.close()
    assert found == ["wal", 2, 1], "2 is FULL: each commit reaches the disk"


async def test_work_that_raises_writes_nothing(file: Path) -> None:
    store = SqliteFenceStore(file, setup=lambda connection: connection.execute("CREATE TABLE t (x)"))

    def work(transaction: object) -> None:
        transaction.application.execute("INSERT INTO t VALUES (1)")  # type: ignore[attr-defined]
        raise LookupError("changed my mind")

    with pytest.raises(LookupError):
        await store.run(work)
    count = await store.run(lambda transaction: transaction.application.execute("SELECT count(*) FROM t").fetchone())
    await store.close()
    assert count == (0,)


async def test_setup_that_fails_is_tried_again(file: Path) -> None:
    failing = True

    def setup(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE t (x)")
        if failing:
            raise LookupError("not yet")

    store = SqliteFenceStore(file, setup=setup)
    with pytest.raises(LookupError):
        await store.run(lambda transaction: None)
    failing = False
    await store.run(lambda transaction: transaction.application.execute("INSERT INTO t VALUES (1)"))
    await store.close()


async def test_tables_of_a_newer_version(file: Path) -> None:
    store = SqliteFenceStore(file)
    await store.run(lambda transaction: transaction.application.execute("UPDATE tabhelm_schema SET version = 99"))
    await store.close()
    with pytest.raises(TabhelmError, match=r"effects\.db holds tabhelm tables of version 99"):
        await store.run(lambda transaction: None)
    await store.close()


async def test_too_many_waiting(file: Path) -> None:
    store = SqliteFenceStore(file, max_waiting=2)
    began, go_on = threading.Event(), threading.Event()

    def slow(transaction: object) -> str:
        began.set()
        assert go_on.wait(10)
        return "done"

    first = asyncio.create_task(store.run(slow))
    await asyncio.to_thread(began.wait, 10)
    second = asyncio.create_task(store.run(lambda transaction: "done too"))
    await asyncio.sleep(0)  # let it queue
    with pytest.raises(StoreBusy, match="2 requests wait"):
        await store.run(lambda transaction: None)
    go_on.set()
    assert [await first, await second] == ["done", "done too"]
    assert await store.run(lambda transaction: "again") == "again"
    await store.close()


@SQLITE
async def test_full_disk_is_nobodys_failure(make_client: MakeClient) -> None:
    """Not the operation's: it would be counted against it. The whole request comes again."""

    def apply(effect: Effect, connection: sqlite3.Connection) -> None:
        if effect.payload == "large":
            connection.execute("PRAGMA max_page_count = 20")
            connection.execute("INSERT INTO applied (op_id) VALUES (zeroblob(4000000))")
        connection.execute("INSERT INTO applied (op_id) VALUES (?)", (effect.op_id,))

    client = make_client(apply=apply)
    await client.statuses(token(1, 1), operation("a"))
    answer = await client.batch(token(1, 2), operation("b"), operation("c", "large"))
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:tabhelm:busy")
    assert client.applied() == ["a"]
    assert await client.statuses(token(1, 2), operation("b")) == ["committed"]


async def test_in_memory() -> None:
    store = SqliteFenceStore(":memory:", setup=lambda connection: connection.execute("CREATE TABLE t (x)"))
    await store.run(lambda transaction: transaction.application.execute("INSERT INTO t VALUES (1)"))
    count = await store.run(lambda transaction: transaction.application.execute("SELECT count(*) FROM t").fetchone())
    await store.close()
    assert count == (1,)


@SQLITE
@pytest.mark.parametrize("factory", ["row_factory", "text_factory"])
async def test_how_the_application_likes_its_rows_is_its_own_matter(make_client: MakeClient, factory: str) -> None:
    seen: list[object] = []

    def apply(effect: Effect, connection: sqlite3.Connection) -> None:
        setattr(connection, factory, bytes if factory == "text_factory" else lambda cursor, row: {"op": row[0]})
        connection.execute("INSERT INTO applied (op_id) VALUES (?)", (effect.op_id,))
        seen.append(connection.execute("SELECT op_id FROM applied ORDER BY n DESC").fetchone())

    client = make_client(apply=apply)
    for seq, op_id, status in ((1, "a", "committed"), (2, "b", "committed"), (3, "a", "duplicate")):
        assert await client.statuses(token(1, seq), operation(op_id)) == [status]
    assert seen == {"text_factory": [(b"a",), (b"b",)], "row_factory": [{"op": "a"}, {"op": "b"}]}[factory]


async def test_what_setup_sets_is_what_apply_finds(file: Path) -> None:
    def setup(connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row

    def work(transaction: FenceTransaction[sqlite3.Connection]) -> object:
        with transaction.savepoint():
            row: object = transaction.application.execute("SELECT 1").fetchone()
            return type(row)

    store = SqliteFenceStore(file, setup=setup)
    assert await store.run(work) is sqlite3.Row
    await store.close()


async def test_those_who_wait_wait_together(file: Path) -> None:
    """However many wait for another program's lock, each is answered after the timeout, not after all before it."""
    store = SqliteFenceStore(file, busy_timeout=0.3)
    await store.run(lambda transaction: None)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    ends = await asyncio.gather(*(store.run(lambda transaction: None) for _ in range(10)), return_exceptions=True)
    took = time.monotonic() - began
    other.close()
    assert {type(end) for end in ends} == {StoreBusy}
    assert 0.25 < took < 2.7, "one after the other it would have been 3 seconds"
    await store.run(lambda transaction: None)
    await store.close()


async def test_slow_work_before_it_costs_nobody_its_turn(file: Path) -> None:
    store = SqliteFenceStore(file, busy_timeout=0.05)
    slow = store.run(lambda transaction: time.sleep(0.2))
    _, second = await asyncio.gather(slow, store.run(lambda transaction: "done"))
    assert second == "done"
    await store.close()


@SQLITE
async def test_a_file_that_cannot_be_written_is_nobodys_failure(make_client: MakeClient) -> None:
    """A file system that became read-only for an hour costs no operation one of its attempts."""
    read_only = True

    def setup(connection: sqlite3.Connection) -> None:
        create_tables(connection)
        connection.execute(f"PRAGMA query_only = {int(read_only)}")

    client = make_client(store={"setup": setup})
    answer = await client.batch(token(1, 1), operation("a"))
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:tabhelm:busy")
    read_only = False
    await client.receiver.close()
    assert await client.statuses(token(1, 1), operation("a")) == ["committed"]


async def test_a_place_that_is_not_there_yet_is_busy(tmp_path: Path) -> None:
    store = SqliteFenceStore(tmp_path / "mount" / "effects.db")
    with pytest.raises(StoreBusy, match="unable to open"):
        await store.run(lambda transaction: None)
    (tmp_path / "mount").mkdir()
    await store.run(lambda transaction: None)
    await store.close()


async def test_who_comes_while_it_closes_opens_it_again(file: Path) -> None:
    store = SqliteFenceStore(file, setup=lambda connection: connection.execute("CREATE TABLE IF NOT EXISTS t (x)"))
    await store.run(lambda transaction: None)
    entered, go_on = threading.Event(), threading.Event()

    def slow(transaction: object) -> None:
        entered.set()
        assert go_on.wait(10)

    running = asyncio.create_task(store.run(slow))
    await asyncio.to_thread(entered.wait, 10)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)  # the old thread is still at work, with its connection open
    coming = asyncio.create_task(
        store.run(lambda transaction: transaction.application.execute("INSERT INTO t VALUES (1)"))
    )
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(running, closing, coming)
    await store.close()
