"""What every store of fences must do. Each case gets a new real database, and opens its stores on it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest
from databases import Database, insert

from tabhelm.errors import TabhelmError
from tabhelm.fencing.guard import Marks
from tabhelm.server import FenceStore, FenceTransaction, StoreBusy, TransactionBroken
from tabhelm.server.store import Key, Known

Transaction = FenceTransaction[Any]
KEY = Key("somebody", "d1", "app:queue")
COMMITTED = Known(b"\x00digest\xff", "committed", "", 1000.5)
REJECTED = Known(b"", "rejected", "no\nsuch 'case'", 2000.0)


async def keeps_marks_and_decisions_over_a_restart(database: Database) -> None:
    store = database.store()
    marks = Marks(7, "tab-a", {"lane-0": 3})

    def write(transaction: Transaction) -> None:
        assert transaction.marks(KEY, "lane-0") is None
        transaction.raise_marks(KEY, None, marks, "lane-0")
        transaction.remember("somebody", {"a": COMMITTED, "b": REJECTED})

    await store.run(write)
    await store.close()
    for again in (store, database.store()):
        assert await again.run(lambda transaction: transaction.marks(KEY, "lane-0")) == marks
        assert await again.run(lambda transaction: transaction.marks(KEY, "lane-1")) == Marks(7, "tab-a")
        known = await again.run(lambda transaction: transaction.known("somebody", ["b", "a", "c", "a"]))
        assert known == {"a": COMMITTED, "b": REJECTED}
        await again.close()


async def a_new_epoch_forgets_the_streams_of_the_old_one(database: Database) -> None:
    store = database.store()
    raised = [Marks(1, "a", {"s": 1}), Marks(1, "a", {"t": 5}), Marks(2, "a", {"s": 1}), Marks(3, "b", {"t": 1})]
    for seen in raised:
        await store.run(partial(_raise, KEY, seen))
    assert await store.run(lambda transaction: transaction.marks(KEY, "t")) == Marks(3, "b", {"t": 1})
    assert await store.run(lambda transaction: transaction.marks(KEY, "s")) == Marks(3, "b")
    assert database.query("SELECT stream, seq FROM tabhelm_streams") == [("t", 1)]
    await store.close()


async def keys_never_meet(database: Database) -> None:
    store = database.store()
    keys = [KEY, Key("somebody", "d1", "app"), Key("somebod", "yd1", "app:queue"), Key("somebody", "d1a", "pp:queue")]
    for epoch, key in enumerate(keys, 1):
        await store.run(partial(_raise, key, Marks(epoch, "a", {"s": 1})))
    for epoch, key in enumerate(keys, 1):
        assert await store.run(partial(_marks, key, "s")) == Marks(epoch, "a", {"s": 1})
    await store.run(lambda transaction: transaction.remember("ab", {"c": COMMITTED}))
    assert await store.run(lambda transaction: transaction.known("a", ["bc", "c"])) == {}
    await store.close()


async def the_longest_texts_fit(database: Database) -> None:
    """Of random characters, which no database can compress."""
    store = database.store()
    wide = "".join(chr(0x20000 + 7919 * n % 40000) for n in range(512))
    domain, resource, stream = ("".join(chr(33 + step * n % 90) for n in range(512)) for step in (31, 37, 41))
    key = Key(wide, domain, resource)
    await store.run(partial(_raise, key, Marks(10**15 - 1, wide[:9], {stream: 10**15 - 1})))
    await store.run(lambda transaction: transaction.remember(wide, {wide: COMMITTED}))
    found = await store.run(lambda transaction: transaction.marks(key, stream))
    assert found == Marks(10**15 - 1, wide[:9], {stream: 10**15 - 1})
    assert await store.run(lambda transaction: transaction.known(wide, [wide])) == {wide: COMMITTED}
    await store.close()


async def forgets_what_expired_and_no_more_than_asked(database: Database) -> None:
    store = database.store()
    decisions = {f"{n}": Known(b"", "committed", "", float(n)) for n in range(100)}
    await store.run(lambda transaction: transaction.remember("somebody", decisions))
    assert await store.run(lambda transaction: transaction.forget(0.0, 10)) == 0, "what expires now is remembered"
    assert await store.run(lambda transaction: transaction.forget(50.0, 30)) == 30
    assert await store.run(lambda transaction: transaction.forget(50.0, 30)) == 20
    assert await store.run(lambda transaction: transaction.forget(50.0, 30)) == 0
    left = await store.run(lambda transaction: transaction.known("somebody", list(decisions)))
    assert sorted(map(int, left)) == list(range(50, 100))
    await store.close()


async def knows_when_its_newest_decision_expires(database: Database) -> None:
    store = database.store()
    assert await store.run(lambda transaction: transaction.newest()) == 0.0
    for expires_at, newest in ((1000.5, 1000.5), (10.0, 1000.5), (2e9, 2e9)):
        known = {f"{expires_at}": Known(b"", "committed", "", expires_at)}
        await store.run(partial(_remember, known))
        assert await store.run(lambda transaction: transaction.newest()) == newest
    await store.close()


async def work_that_raises_writes_nothing(database: Database) -> None:
    store = database.store()

    def work(transaction: Transaction) -> None:
        _raise(KEY, Marks(1, "a", {"s": 1}), transaction)
        transaction.remember("somebody", {"a": COMMITTED})
        with transaction.savepoint():
            insert(transaction.application, "a")
        raise LookupError("changed my mind")

    with pytest.raises(LookupError):
        await store.run(work)
    assert await store.run(lambda transaction: transaction.marks(KEY, "s")) is None
    assert await store.run(lambda transaction: transaction.known("somebody", ["a"])) == {}
    assert database.query("SELECT * FROM applied") == []
    await store.close()


async def a_savepoint_undoes_its_own_block_alone(database: Database) -> None:
    store = database.store()

    def work(transaction: Transaction) -> None:
        for op_id, failing in (("a", False), ("b", True), ("c", False)):
            try:
                with transaction.savepoint():
                    insert(transaction.application, op_id)
                    if failing:
                        transaction.application.execute("SELECT * FROM nowhere")
            except (StoreBusy, TransactionBroken) as error:
                raise AssertionError from error
            except Exception:
                assert failing

    await store.run(work)
    assert database.query("SELECT op_id FROM applied ORDER BY n") == [("a",), ("c",)]
    await store.close()


async def one_resource_is_written_by_one_transaction_at_a_time(database: Database) -> None:
    """Read, then write, in several stores of the same database: only exclusion gets this right."""
    stores = [database.store() for _ in range(3)]

    def work(transaction: Transaction) -> int:
        marks = transaction.marks(KEY, "s")
        seq = marks.streams["s"] + 1 if marks else 1
        transaction.raise_marks(KEY, marks, Marks(1, "a", {"s": seq}), "s")
        return seq

    found = await asyncio.gather(*(stores[n % 3].run(work) for n in range(60)))
    assert sorted(found) == list(range(1, 61))
    for store in stores:
        await store.close()


async def who_comes_first_to_a_resource_comes_alone(database: Database) -> None:
    """There is no row to lock yet."""
    store, other = database.store(), database.store()
    for n in range(10):
        key = Key("somebody", "d1", f"app:{n}")

        def work(transaction: Transaction, key: Key = key) -> bool:
            first = transaction.marks(key, "s") is None
            if first:
                transaction.raise_marks(key, None, Marks(1, "a", {"s": 1}), "s")
            return first

        assert sum(await asyncio.gather(*(each.run(work) for each in (store, other, store, other)))) == 1
    await store.close()
    await other.close()


async def one_that_gives_up_lets_the_next_be_first(database: Database) -> None:
    store = database.store()
    entered, go_on = threading.Event(), threading.Event()

    def gives_up(transaction: Transaction) -> None:
        assert transaction.marks(KEY, "s") is None
        transaction.raise_marks(KEY, None, Marks(9, "a", {"s": 9}), "s")
        entered.set()
        assert go_on.wait(20)
        raise LookupError

    first = asyncio.create_task(store.run(gives_up))
    await asyncio.to_thread(entered.wait, 20)
    second = asyncio.create_task(store.run(lambda transaction: transaction.marks(KEY, "s")))
    go_on.set()
    with pytest.raises(LookupError):
        await first
    assert await second is None
    await store.close()


async def setup_that_fails_is_tried_again(database: Database) -> None:
    failing = True

    def setup(connection: Any) -> None:
        connection.execute("CREATE TABLE mine (x INTEGER)")
        if failing:
            raise LookupError("not yet")

    store = database.store(setup=setup)
    with pytest.raises(LookupError):
        await store.run(lambda transaction: None)
    failing = False
    await store.run(lambda transaction: transaction.application.execute("INSERT INTO mine VALUES (1)"))
    assert database.query("SELECT x FROM mine") == [(1,)]
    await store.close()


async def setup_may_not_end_its_transaction(database: Database) -> None:
    for name in ("commit", "rollback", "close"):
        store = database.store(setup=lambda connection, name=name: getattr(connection, name)())
        with pytest.raises(Exception, match="not for apply or setup"):
            await store.run(lambda transaction: None)
        await store.close()


async def tables_of_a_newer_version_are_left_alone(database: Database) -> None:
    store = database.store()
    await store.run(lambda transaction: transaction.application.execute("UPDATE tabhelm_schema SET version = 99"))
    await store.close()
    with pytest.raises(TabhelmError, match="holds tabhelm tables of version 99"):
        await store.run(lambda transaction: None)
    await store.close()


async def too_many_waiting(database: Database) -> None:
    options = {"pool_size": 1} if database.kind == "postgres" else {}
    store = database.store(max_waiting=2, **options)
    began, go_on = threading.Event(), threading.Event()

    def slow(transaction: Transaction) -> str:
        began.set()
        assert go_on.wait(20)
        return "done"

    first = asyncio.create_task(store.run(slow))
    await asyncio.to_thread(began.wait, 20)
    second = asyncio.create_task(store.run(lambda transaction: "done too"))
    await asyncio.sleep(0)  # let it queue
    with pytest.raises(StoreBusy, match="2 requests wait"):
        await store.run(lambda transaction: None)
    go_on.set()
    assert [await first, await second] == ["done", "done too"]
    assert await store.run(lambda transaction: "again") == "again"
    await store.close()


async def a_store_that_was_never_used_can_be_closed(database: Database) -> None:
    store: FenceStore[Any] = database.store()
    await store.close()
    await store.close()


def _marks(key: Key, stream: str, transaction: Transaction) -> Marks | None:
    return transaction.marks(key, stream)


def _remember(decisions: dict[str, Known], transaction: Transaction) -> None:
    transaction.remember("somebody", decisions)


def _raise(key: Key, after: Marks, transaction: Transaction) -> None:
    (stream,) = after.streams
    transaction.raise_marks(key, transaction.marks(key, stream), after, stream)


CASES = [
    keeps_marks_and_decisions_over_a_restart,
    a_new_epoch_forgets_the_streams_of_the_old_one,
    keys_never_meet,
    the_longest_texts_fit,
    forgets_what_expired_and_no_more_than_asked,
    knows_when_its_newest_decision_expires,
    work_that_raises_writes_nothing,
    a_savepoint_undoes_its_own_block_alone,
    one_resource_is_written_by_one_transaction_at_a_time,
    who_comes_first_to_a_resource_comes_alone,
    one_that_gives_up_lets_the_next_be_first,
    setup_that_fails_is_tried_again,
    setup_may_not_end_its_transaction,
    tables_of_a_newer_version_are_left_alone,
    too_many_waiting,
    a_store_that_was_never_used_can_be_closed,
]
