"""How databases must behave."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from cases_kit import cases, eventually, fresh, raised, spawn

from tabhelm.errors import DatabaseClosed, DatabaseError, ForeignAwait, KeyExists
from tabhelm.ports import Database, Index, KeyRange, Opaque, Ports, Schema, Store, Transaction

SCHEMA = Schema(
    1,
    (
        Store(
            "items",
            "id",
            indexes=(
                Index("by_lane", ("lane", "seq")),
                Index("by_tag", "tag"),
                Index("by_code", "code", unique=True),
                Index("by_depth", "inner.depth"),
                Index("by_name", "names", multi_entry=True),
            ),
        ),
        Store("log", "n", auto_increment=True),
        Store("pairs", ("a", "b")),
    ),
)


def opened(ports: Ports, name: str | None = None) -> Database:
    return ports.databases.database(name or fresh(ports, "db"), SCHEMA)


async def put_items(database: Database, *items: dict[str, Any]) -> None:
    async def body(tx: Transaction) -> None:
        await tx.put_all("items", items)

    await database.transaction(["items"], "readwrite", body)


async def all_of(database: Database, store: str, keys: KeyRange | None = None, **options: Any) -> list[dict[str, Any]]:
    async def body(tx: Transaction) -> list[dict[str, Any]]:
        return await tx.get_all(store, keys, **options)

    return await database.transaction([store], "readonly", body)


async def success_means_complete(here: Ports, there: Ports) -> None:
    name = fresh(here, "db")
    mine, theirs = opened(here, name), opened(there, name)
    value = {
        "id": "a",
        "n": 1,
        "half": 0.5,
        "none": None,
        "yes": True,
        "deep": {"list": [1, "x", {"y": []}]},
        "u": "äß🦀",
    }

    async def write(tx: Transaction) -> str:
        assert await tx.get("items", "a") is None, "a missing record is not None"
        assert await tx.put("items", value) == "a", "put does not answer the key"
        assert await tx.get("items", "a") == value, "one's own write is not seen"
        return "result"

    assert await mine.transaction(["items"], "readwrite", write) == "result", "the body's result is lost"
    assert await all_of(theirs, "items") == [value], "another connection does not see what completed"
    mine.close()
    theirs.close()


async def values_are_copies(here: Ports, there: Ports) -> None:
    database = opened(here)
    inner = [1]
    record = {"id": "a", "inner": inner}
    await put_items(database, record)
    inner.append(2)
    (first,) = await all_of(database, "items")
    assert first == {"id": "a", "inner": [1]}, f"the store shares the caller's list: {first}"
    first["inner"].append(3)
    assert await all_of(database, "items") == [{"id": "a", "inner": [1]}], "the store shares the reader's list"
    database.close()


async def opaque_values_are_carried_as_they_are(here: Ports, there: Ports) -> None:
    """Through put, add_all, get, get_all and another put of what was read; the rest of the record stays readable."""
    name = fresh(here, "db")
    mine, theirs = opened(here, name), opened(there, name)
    values: list[Any] = [
        {"text": "äß🦀", "n": 1.5, "bytes": b"\x00\xff", "deep": [[1, {"none": None}], {}], "yes": True},
        b"alone",
        "text",
        17,
        None,
        [],
        {},
    ]

    async def write(tx: Transaction) -> None:
        await tx.add_all("items", [{"id": n, "value": Opaque(value), "empty": {}} for n, value in enumerate(values)])
        await tx.put("log", {"left": Opaque(values[0]), "n": 1, "right": Opaque("other")})

    await mine.transaction(["items", "log"], "readwrite", write)

    async def move(tx: Transaction) -> None:
        for record in await tx.get_all("items"):
            await tx.put("items", {**record, "moved": True})

    await theirs.transaction(["items"], "readwrite", move)
    for database in (mine, theirs):
        records = await all_of(database, "items")
        assert [record["value"].python() for record in records] == values, f"read {records}"
        assert all(record["empty"] == {} and record["moved"] is True for record in records), f"read {records}"

        async def one(tx: Transaction) -> Any:
            return await tx.get("log", 1)

        record = await database.transaction(["log"], "readonly", one)
        assert record["left"].python() == values[0] and record["right"].python() == "other", f"read {record}"
        database.close()


async def opaque_values_are_copies(here: Ports, there: Ports) -> None:
    database = opened(here)
    inner = [1]
    await put_items(database, {"id": "a", "value": Opaque({"inner": inner})})
    inner.append(2)
    (first,) = await all_of(database, "items")
    assert first["value"].python() == {"inner": [1]}, "the store shares the caller's list"
    database.close()


async def opaque_values_are_fields_of_records_and_data(here: Ports, there: Ports) -> None:
    database = opened(here)

    def writer(bad: Any) -> Any:
        async def body(tx: Transaction) -> None:
            await tx.put("items", {"id": "good", "value": Opaque(1)})
            await tx.add_all("items", [{"id": "also good"}, {"id": "a", "bad": bad}])

        return body

    for bad in ([Opaque(1)], {"deeper": Opaque(1)}, Opaque(lambda: None)):
        await raised(DatabaseError, database.transaction(["items"], "readwrite", writer(bad)))
    assert await all_of(database, "items") == []
    database.close()


async def what_json_cannot_hold_is_refused(here: Ports, there: Ports) -> None:
    database = opened(here)

    async def body(tx: Transaction) -> None:
        await tx.put("items", {"id": "a", "bad": object()})

    await raised(DatabaseError, database.transaction(["items"], "readwrite", body))
    assert await all_of(database, "items") == []
    database.close()


class OwnError(Exception):
    pass


async def an_exception_in_the_body_aborts_and_arrives_as_itself(here: Ports, there: Ports) -> None:
    database = opened(here)
    error = OwnError("mine")

    async def body(tx: Transaction) -> None:
        await tx.put("items", {"id": "a"})
        raise error

    async def at_once(tx: Transaction) -> None:
        raise error

    assert await raised(OwnError, database.transaction(["items"], "readwrite", body)) is error, "another exception"
    assert await raised(OwnError, database.transaction(["items"], "readwrite", at_once)) is error, "another exception"
    assert await all_of(database, "items") == [], "the aborted write is there"
    database.close()


async def awaiting_anything_else_is_refused(here: Ports, there: Ports) -> None:
    database = opened(here)

    async def sleeping(tx: Transaction) -> None:
        await tx.put("items", {"id": "a"})
        await asyncio.sleep(0.01)

    async def yielding(tx: Transaction) -> None:
        await tx.put("items", {"id": "b"})
        await asyncio.sleep(0)

    async def waiting(tx: Transaction) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await tx.put("items", {"id": "c"})
        await future

    async def first_of_all(tx: Transaction) -> None:
        await here.clock.sleep(0.01)
        await tx.put("items", {"id": "d"})

    async def swallowing(tx: Transaction) -> None:
        await tx.put("items", {"id": "e"})
        try:
            await asyncio.sleep(0.01)
        except ForeignAwait:
            return

    for body in (sleeping, yielding, waiting, first_of_all, swallowing):
        await raised(ForeignAwait, database.transaction(["items"], "readwrite", body))
    assert await all_of(database, "items") == [], "a transaction that awaited something else wrote"
    database.close()


async def requests_need_their_own_body(here: Ports, there: Ports) -> None:
    database = opened(here)
    kept: list[Transaction] = []

    async def leak(tx: Transaction) -> None:
        kept.append(tx)
        await tx.count("items")

    await database.transaction(["items"], "readonly", leak)

    async def late() -> Any:
        return await kept[0].count("items")

    await raised(DatabaseError, late())
    database.close()


async def read_modify_write_loses_nothing(here: Ports, there: Ports) -> None:
    name = fresh(here, "db")
    databases = [opened(here, name), opened(there, name)]
    await put_items(databases[0], {"id": "counter", "value": 0})

    async def add(tx: Transaction) -> None:
        record = await tx.get("items", "counter")
        assert record is not None
        await tx.put("items", {**record, "value": record["value"] + 1})

    await asyncio.gather(*(databases[i % 2].transaction(["items"], "readwrite", add) for i in range(40)))
    (counter,) = await all_of(databases[1], "items")
    assert counter["value"] == 40, f"{counter['value']} of 40 additions are left"
    for database in databases:
        database.close()


async def many_requests_may_wait_together(here: Ports, there: Ports) -> None:
    database = opened(here)

    async def body(tx: Transaction) -> tuple[Any, ...]:
        written = tx.put_all("items", [{"id": "a"}, {"id": "b"}])
        number = tx.count("items")
        gone = tx.delete("items", "a")
        left = tx.get_all("items")
        records = await left
        await gone
        return await written, await number, records

    result = await database.transaction(["items"], "readwrite", body)
    assert result == (["a", "b"], 2, [{"id": "b"}]), f"got {result}"

    async def forgetful(tx: Transaction) -> None:
        tx.put("items", {"id": "c"})

    await database.transaction(["items"], "readwrite", forgetful)
    assert [record["id"] for record in await all_of(database, "items")] == ["b", "c"], "an unawaited request is lost"
    database.close()


async def a_unique_index_aborts_everything(here: Ports, there: Ports) -> None:
    database = opened(here)
    await put_items(database, {"id": "a", "code": "one"}, {"id": "none"}, {"id": "none either"})

    async def clash(tx: Transaction) -> None:
        await tx.put("items", {"id": "b", "code": "two"})
        await tx.add_all("items", [{"id": "c", "code": "three"}, {"id": "d", "code": "one"}])

    async def clash_of_keys(tx: Transaction) -> None:
        await tx.put("items", {"id": "b"})
        await tx.add_all("items", [{"id": "a"}])

    async def swallowed(tx: Transaction) -> str:
        with contextlib.suppress(KeyExists):
            await tx.add_all("items", [{"id": "a"}])
        return "never mind"

    for body in (clash, clash_of_keys, swallowed):
        await raised(KeyExists, database.transaction(["items"], "readwrite", body))
    ids = [record["id"] for record in await all_of(database, "items")]
    assert ids == ["a", "none", "none either"], f"after the abort there are {ids}"
    await put_items(database, {"id": "a", "code": "one", "again": True})
    database.close()


async def generated_keys_grow(here: Ports, there: Ports) -> None:
    database = opened(here)

    async def add(tx: Transaction) -> Any:
        keys = await tx.add_all("log", [{"text": "x"}, {"text": "y"}])
        return [*keys, await tx.put("log", {"text": "z"})]

    async def failing(tx: Transaction) -> None:
        await tx.put("log", {"text": "never"})
        raise OwnError

    first = await database.transaction(["log"], "readwrite", add)
    await raised(OwnError, database.transaction(["log"], "readwrite", failing))
    second = await database.transaction(["log"], "readwrite", add)
    keys = [*first, *second]
    assert keys == sorted(set(keys)), f"generated keys do not grow: {keys}"
    assert [record["n"] for record in await all_of(database, "log")] == keys, "keys are not in the records"

    async def replace(tx: Transaction) -> Any:
        return await tx.put("log", {"n": keys[0], "text": "new"})

    assert await database.transaction(["log"], "readwrite", replace) == keys[0]
    texts = [record["text"] for record in await all_of(database, "log")]
    assert texts == ["new", "y", "z", "x", "y", "z"], f"texts are {texts}"
    database.close()


async def keys_come_back_in_the_order_of_the_values(here: Ports, there: Ports) -> None:
    database = opened(here)

    async def body(tx: Transaction) -> Any:
        put = await tx.put_all("pairs", [{"a": 2, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "x"}])
        return put, await tx.put_all("pairs", []), await tx.get("pairs", [1, "y"])

    put, nothing, found = await database.transaction(["pairs"], "readwrite", body)
    assert put == [[2, "x"], [1, "y"], [1, "x"]], f"keys are {put}"
    assert nothing == [], f"no values gave the keys {nothing}"
    assert found == {"a": 1, "b": "y"}, f"found {found}"
    stored = [[record["a"], record["b"]] for record in await all_of(database, "pairs")]
    assert stored == [[1, "x"], [1, "y"], [2, "x"]], f"stored in the order {stored}"
    database.close()


async def numbers_come_before_strings_before_lists(here: Ports, there: Ports) -> None:
    database = opened(here)
    keys: list[Any] = [-1, 0.5, 2, 10, "", "10", "9", "Z", "a", "ä", [], [1], [1, 1], [2], ["a"], [[]]]
    await put_items(database, *({"id": key} for key in reversed(keys)))
    found = [record["id"] for record in await all_of(database, "items")]
    assert found == keys, f"the order is {found}"
    found = [
        record["id"] for record in await all_of(database, "items", KeyRange(2, "a", lower_open=True, upper_open=True))
    ]
    assert found == [10, "", "10", "9", "Z"], f"the range holds {found}"
    database.close()


async def a_prefix_range_finds_its_lane(here: Ports, there: Ports) -> None:
    database = opened(here)
    await put_items(
        database,
        *({"id": f"{lane}{seq}", "lane": lane, "seq": seq} for lane in ("a", "b", "c") for seq in (10, 9, 1)),
        {"id": "no seq", "lane": "b"},
        {"id": "null seq", "lane": "b", "seq": None},
        {"id": "no lane", "seq": 1},
    )
    lane = KeyRange.prefix("b")
    found = [record["id"] for record in await all_of(database, "items", lane, index="by_lane")]
    assert found == ["b1", "b9", "b10"], f"the lane holds {found}"
    found = [record["id"] for record in await all_of(database, "items", lane, index="by_lane", count=2)]
    assert found == ["b1", "b9"], f"the first two are {found}"
    only = [record["id"] for record in await all_of(database, "items", KeyRange.only(["b", 9]), index="by_lane")]
    assert only == ["b9"], f"only is {only}"
    above = KeyRange(["b", 1], ["c", 9], lower_open=True, upper_open=True)
    found = [record["id"] for record in await all_of(database, "items", above, index="by_lane")]
    assert found == ["b9", "b10", "c1"], f"above is {found}"

    async def numbers(tx: Transaction) -> tuple[int, int, int]:
        return await tx.count("items"), await tx.count("items", lane, index="by_lane"), await tx.count("pairs")

    assert await database.transaction(["items", "pairs"], "readonly", numbers) == (12, 3, 0), "counts are wrong"
    database.close()


async def an_index_finds_one(here: Ports, there: Ports) -> None:
    database = opened(here)
    await put_items(
        database,
        {"id": "2", "tag": "t", "inner": {"depth": 7}},
        {"id": "1", "tag": "t", "inner": {"depth": 8}},
        {"id": "3", "tag": "u", "inner": {}},
    )

    async def body(tx: Transaction) -> list[Any]:
        return [
            await tx.get("items", "t", index="by_tag"),
            await tx.get("items", 7, index="by_depth"),
            await tx.get("items", "none", index="by_tag"),
        ]

    first, deep, none = await database.transaction(["items"], "readonly", body)
    assert first["id"] == "1", "not the first by primary key"
    assert deep["id"] == "2" and none is None, f"found {deep} and {none}"

    async def move(tx: Transaction) -> Any:
        await tx.put("items", {"id": "1", "tag": "u"})
        return [record["id"] for record in await tx.get_all("items", KeyRange.only("u"), index="by_tag")]

    assert await database.transaction(["items"], "readwrite", move) == ["1", "3"], "the index did not follow the write"
    database.close()


async def delete_all_deletes_what_is_there(here: Ports, there: Ports) -> None:
    database = opened(here)
    await put_items(database, *({"id": number} for number in range(5)))

    async def body(tx: Transaction) -> int:
        await tx.delete_all("items", [1, 3, 99])
        await tx.delete_all("items", [])
        await tx.delete("items", "none")
        return await tx.count("items")

    assert await database.transaction(["items"], "readwrite", body) == 3
    assert [record["id"] for record in await all_of(database, "items")] == [0, 2, 4]
    database.close()


async def a_range_is_deleted_at_once(here: Ports, there: Ports) -> None:
    database = opened(here)
    lines = [{"a": name, "b": number} for name in ("x", "y", "z") for number in range(4)]

    async def body(tx: Transaction) -> None:
        await tx.put_all("pairs", lines)
        await tx.delete_ranges("pairs", [KeyRange(["x", 1], ["x", 2]), KeyRange.prefix("y"), KeyRange(["q"], ["r"])])
        await tx.delete_ranges("pairs", [])

    await database.transaction(["pairs"], "readwrite", body)
    left = [(record["a"], record["b"]) for record in await all_of(database, "pairs")]
    assert left == [("x", 0), ("x", 3), *(("z", number) for number in range(4))], f"left {left}"
    database.close()


async def an_index_of_several_entries_lists_a_record_under_each(here: Ports, there: Ports) -> None:
    database = opened(here)
    await put_items(
        database,
        {"id": 1, "names": [["q", "a"], ["q", "b"], ["q", "a"]]},
        {"id": 2, "names": [["q", "c"], None]},
        {"id": 3, "names": []},
        {"id": 4},
    )

    async def find(tx: Transaction) -> list[Any]:
        asked = [tx.get("items", ["q", name], index="by_name") for name in "abcd"]
        return [found["id"] if (found := await each) else None for each in asked]

    assert await database.transaction(["items"], "readonly", find) == [1, 1, 2, None]
    await put_items(database, {"id": 1, "names": [["q", "d"]]})
    assert await database.transaction(["items"], "readonly", find) == [None, None, 2, 1], "it did not follow the write"

    async def remove(tx: Transaction) -> None:
        await tx.delete("items", 2)

    await database.transaction(["items"], "readwrite", remove)
    assert await database.transaction(["items"], "readonly", find) == [None, None, None, 1]
    database.close()


async def reading_only_is_reading_only(here: Ports, there: Ports) -> None:
    database = opened(here)

    async def write(tx: Transaction) -> None:
        await tx.put("items", {"id": "a"})

    async def stray(tx: Transaction) -> None:
        await tx.get("log", 1)

    async def keyless(tx: Transaction) -> None:
        await tx.put("items", {"name": "no id"})

    await raised(DatabaseError, database.transaction(["items"], "readonly", write))
    await raised(DatabaseError, database.transaction(["items"], "readonly", stray))
    await raised(DatabaseError, database.transaction(["no such store"], "readonly", stray))
    await raised(DatabaseError, database.transaction(["items"], "readwrite", keyless))
    assert await all_of(database, "items") == []
    database.close()


async def a_cancelled_caller_writes_all_or_nothing(here: Ports, there: Ports) -> None:
    name = fresh(here, "db")
    database = opened(here, name)
    await put_items(database, {"id": "first"})

    async def slow(tx: Transaction) -> None:
        for number in range(20):
            await tx.put("items", {"id": number})

    for delay in (0.0, 0.002, 0.004, 0.008, 0.016):
        task = spawn(database.transaction(["items"], "readwrite", slow))
        await here.clock.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        left = len(await all_of(database, "items"))
        assert left in (1, 21), f"{left} records are left of a cancelled transaction"

        async def clean(tx: Transaction) -> None:
            await tx.delete_all("items", list(range(20)))

        await database.transaction(["items"], "readwrite", clean)
    database.close()


async def a_writer_waits_for_the_writer_before_it(here: Ports, there: Ports) -> None:
    name = fresh(here, "db")
    mine, theirs = opened(here, name), opened(there, name)
    await put_items(mine, {"id": "warm"})
    await all_of(theirs, "items")
    inside: list[str] = []
    clashes: list[str] = []

    def writer(who: str) -> Any:
        async def body(tx: Transaction) -> None:
            await tx.get("items", "warm")
            if inside:
                clashes.append(who)
            inside.append(who)
            for number in range(5):
                await tx.put("items", {"id": f"{who}{number}"})
            inside.remove(who)

        return body

    await asyncio.gather(
        *(
            database.transaction(["items"], "readwrite", writer(f"{i}{who}"))
            for i in range(3)
            for who, database in (("mine", mine), ("theirs", theirs))
        )
    )
    assert clashes == [], f"two writers were inside at once: {clashes}"
    assert len(await all_of(mine, "items")) == 31
    mine.close()
    theirs.close()


async def a_closed_database_is_closed_and_a_new_one_opens(here: Ports, there: Ports) -> None:
    name = fresh(here, "db")
    database = opened(here, name)
    events: list[str] = []
    database.subscribe(events.append)
    assert database.name == name
    await put_items(database, {"id": "a"})
    await eventually(here, lambda: events == ["opened"], f"told 'opened' once (told {events})")
    database.close()
    database.close()
    await raised(DatabaseClosed, all_of(database, "items"))
    again = opened(here, name)
    assert await all_of(again, "items") == [{"id": "a"}], "what was written is gone"
    again.close()


async def many_may_open_at_once(here: Ports, there: Ports) -> None:
    name = fresh(here, "db")
    databases = [opened(here if number % 2 else there, name) for number in range(5)]
    await asyncio.gather(*(put_items(database, {"id": number}) for number, database in enumerate(databases)))
    found = [record["id"] for record in await all_of(databases[0], "items")]
    assert found == [0, 1, 2, 3, 4], f"after five first openings there are {found}"
    for database in databases:
        database.close()


async def transactions_begin_in_the_order_of_the_calls(here: Ports, there: Ports) -> None:
    """Even while the database opens: who asks later never overtakes those who wait for it."""
    for _ in range(3):
        name = fresh(here, "db")
        await all_of(opened(there, name), "log")
        database = opened(here, name)
        calls: list[asyncio.Task[None]] = []

        async def write(number: int, database: Database = database) -> None:
            async def body(tx: Transaction) -> None:
                await tx.put("log", {"number": number})

            await database.transaction(["log"], "readwrite", body)

        while not calls or not calls[0].done():
            calls.append(spawn(write(len(calls))))
            assert len(calls) < 5_000, "the database did not open"
            await (here.clock.sleep(0.0003) if len(calls) % 8 == 0 else asyncio.sleep(0))
        await asyncio.gather(*calls)
        found = [record["number"] for record in await all_of(database, "log")]
        assert found == sorted(found) and len(found) == len(calls), f"{len(calls)} calls began in another order"
        database.close()


async def closing_cuts_off_what_runs(here: Ports, there: Ports) -> None:
    # Else a page that goes into the back/forward cache in the midst of a transaction keeps all others waiting.
    name = fresh(here, "db")
    mine, theirs = opened(here, name), opened(there, name)
    running: list[str] = []

    async def endless(tx: Transaction) -> None:
        await tx.put_all("items", [{"id": "half"}])
        running.append("yes")
        while True:
            await tx.get("items", "half")

    task = spawn(mine.transaction(["items"], "readwrite", endless))
    await eventually(here, lambda: running == ["yes"], "the transaction runs")
    mine.close()
    await raised(DatabaseClosed, task)
    await put_items(theirs, {"id": "whole"})
    assert [record["id"] for record in await all_of(theirs, "items")] == ["whole"]
    theirs.close()


CASES = cases(
    transactions_begin_in_the_order_of_the_calls,
    success_means_complete,
    values_are_copies,
    opaque_values_are_carried_as_they_are,
    opaque_values_are_copies,
    opaque_values_are_fields_of_records_and_data,
    what_json_cannot_hold_is_refused,
    an_exception_in_the_body_aborts_and_arrives_as_itself,
    awaiting_anything_else_is_refused,
    requests_need_their_own_body,
    read_modify_write_loses_nothing,
    many_requests_may_wait_together,
    a_unique_index_aborts_everything,
    generated_keys_grow,
    keys_come_back_in_the_order_of_the_values,
    numbers_come_before_strings_before_lists,
    a_prefix_range_finds_its_lane,
    an_index_finds_one,
    delete_all_deletes_what_is_there,
    a_range_is_deleted_at_once,
    an_index_of_several_entries_lists_a_record_under_each,
    reading_only_is_reading_only,
    a_cancelled_caller_writes_all_or_nothing,
    a_writer_waits_for_the_writer_before_it,
    a_closed_database_is_closed_and_a_new_one_opens,
    closing_cuts_off_what_runs,
    many_may_open_at_once,
)
