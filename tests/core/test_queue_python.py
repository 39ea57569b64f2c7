"""What a Python developer gives a queue: many operations at once, values that are no JSON, numbers that are none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from queue_kit import URL, Ledger, opened, simulated

from kit import join
from tabhelm.errors import IdentifierReused, InvalidOptions, InvalidPayload, QuotaExceeded
from tabhelm.ports.database import Opaque
from tabhelm.queue import Item, NewOperation, Operation, Sending
from tabhelm.queue.cloning import cloned
from tabhelm.simulated import SimulatedReceiver, World

# -- many at once ------------------------------------------------------------------------------------------------------


@simulated
async def test_many_operations_with_partitions_and_ids_of_their_own_are_one_transaction(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = opened(a)
    items = [{"n": 1}, Item({"n": 2}, "case-2"), Item({"n": 3}, op_id="three"), Item({"n": 4}, "case-2", "four")]
    ids = await a.agent.start(queue.enqueue_many(items, partition="case-1"))
    assert ids[2:] == ["three", "four"] and len(set(ids)) == 4
    records = world.storage.dump("tabhelm:app")["operations"]
    assert sorted((record["ordinal"], record["op_id"], record["partition"]) for record in records) == [
        (1, ids[0], "case-1"),
        (2, ids[1], "case-2"),
        (3, "three", "case-1"),
        (4, "four", "case-2"),
    ]
    assert await a.agent.start(queue.enqueue_many(items[2:], partition="case-1")) == ["three", "four"]  # once more
    with pytest.raises(IdentifierReused, match="four"):
        await a.agent.start(queue.enqueue_many([{"n": 5}, Item({"n": 6}, "case-2", "four")]))
    with pytest.raises(InvalidPayload, match=r"items\[1\]\.payload\.at is of type datetime"):
        await a.agent.start(queue.enqueue_many([{"n": 5}, Item({"at": datetime.now(UTC)})]))
    with pytest.raises(InvalidPayload, match="partition 'ä' is not valid"):
        await a.agent.start(queue.enqueue_many([{"n": 5}, Item({"n": 6}, "ä")]))
    assert await a.agent.start(queue.enqueue_many([])) == []
    assert (await a.agent.start(queue.stats())).queued == 4, "all or none"
    opened(a, endpoint=URL)
    await world.until(lambda: len(receiver.accepted) == 4)
    assert {effect.op_id: (effect.partition, effect.payload["n"]) for effect in receiver.accepted} == {
        ids[0]: ("case-1", 1),
        ids[1]: ("case-2", 2),
        "three": ("case-1", 3),
        "four": ("case-2", 4),
    }


@simulated
async def test_many_means_a_list_and_never_an_object_that_happens_to_be_walked(world: World) -> None:
    a = join(world, "a")
    queue = opened(a)
    for given, kind in (({"title": "x"}, "dict"), ("title", "str"), (b"title", "bytes"), (Item(1), "Item"), (7, "int")):
        with pytest.raises(InvalidPayload, match=f"items is of type {kind}: a list of payloads or Items is expected"):
            await a.agent.start(queue.enqueue_many(given))  # type: ignore[arg-type]
    assert (await a.agent.start(queue.stats())).queued == 0
    assert len(await a.agent.start(queue.enqueue_many(n for n in range(3)))) == 3, "whatever else can be walked"


@simulated
async def test_an_item_in_the_words_of_javascript_is_refused_and_told_the_way(world: World) -> None:
    # Taken as a payload it would be sent in the default partition, beside those that it should have waited for.
    a = join(world, "a")
    queue = opened(a)
    inner = {"n": 1}
    way_out = r"items\[1\] .*tabhelm\.queue\.Item\(payload, .*Item\(payload=\.\.\.\)"
    for more in ({"partition": "case-9"}, {"id": "x"}, {"op_id": "x"}, {"id": "x", "partition": "case-9"}):
        wrong = {"payload": inner, **more}
        with pytest.raises(InvalidPayload, match=way_out):
            await a.agent.start(queue.enqueue_many([inner, wrong]))
    assert (await a.agent.start(queue.stats())).queued == 0
    fine = [{"payload": 1}, {"partition": "case-9", "id": "x"}, {"payload": 1, "id": "x", "more": 1}]
    wrapped = Item(payload={"payload": inner, "partition": "case-9"})
    assert len(await a.agent.start(queue.enqueue_many([*fine, wrapped]))) == 4


@simulated
async def test_an_error_of_the_storage_names_the_ids_to_try_again_with(world: World) -> None:
    a = join(world, "a")
    queue = opened(a)
    await a.agent.start(queue.enqueue({"n": 0}))
    world.faults.quota = world.storage.size + 100
    with pytest.raises(QuotaExceeded) as caught:
        await a.agent.start(queue.enqueue_many(["x" * 100, Item("y" * 100, op_id="mine")]))
    drawn, mine = caught.value.op_ids
    assert mine == "mine"
    world.faults.quota = None
    assert await a.agent.start(queue.enqueue("x" * 100, op_id=drawn)) == drawn
    with pytest.raises(IdentifierReused):
        await a.agent.start(queue.enqueue("another", op_id=drawn))


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "digest", "size"),
    [  # as web/payloads.mjs has them
        (None, "88561e211e862344bd3cc71c03f8ab25d8a79b9bdbaa1e083af7e0603f30f689", 5),
        ("x", "ba2df4903a2c14e86dc3bcca58911b44ac1d2514b7227bf6eb08cfb978f55a1b", 3),
        ({2, -1, "b", "a"}, "f159876633746b31c11fa08e3991c5272eb75cef20468d59c4f5176406424f32", 16),
        (
            {
                "b": [1, 2.5, None, True, 'ä\u2028\ud800\n\x7f"\\'],
                "a": {"😀": 1, "\ufffd": 2, "x y": b"\x00\xff"},
                "n": -0.0,
                "e": 1e-7,
                "big": 2.0**66,
                "empty": {},
                "list": (),
            },
            "853fdcbb07853afe5aadf16153fab46142f7e736edff4894c337d926798ba197",
            187,
        ),
    ],
)
def test_python_and_a_page_say_the_same_of_equal_values(value: Any, digest: str, size: int) -> None:
    copy, *said = cloned(value)
    assert said == [digest, size]
    assert cloned(copy)[1:] == (digest, size)


@simulated
async def test_what_a_page_enqueued_is_known_when_python_enqueues_the_same(world: World) -> None:
    a = join(world, "a")
    queue = opened(a, payloads="clone")
    digest = "853fdcbb07853afe5aadf16153fab46142f7e736edff4894c337d926798ba197"
    theirs = NewOperation("one", value=Opaque({}), value_digest=digest, value_size=187)
    assert await a.agent.start(queue.enqueue_all([theirs])) == 1
    value = {
        "list": [], "empty": {}, "big": 2**66 + 0.0, "e": 0.0000001, "n": -0.0,
        "a": {"x y": bytearray(b"\x00\xff"), "\ufffd": 2, "😀": 1.0},
        "b": (1, 2.5, None, True, 'ä\u2028\ud800\n\x7f"\\'),
    }  # fmt: skip
    await a.agent.start(queue.enqueue(value, op_id="one"))
    with pytest.raises(IdentifierReused):
        await a.agent.start(queue.enqueue(value | {"n": 0.0}, op_id="one"))
    assert (await a.agent.start(queue.stats())).queued == 1


class JavaScript:
    """What Pyodide makes of an object of JavaScript's, as far as it matters."""

    js_id = 7

    def __init__(self, shown: str, **fields: Any) -> None:
        self._shown = shown
        self.__dict__ |= fields

    def __str__(self) -> str:
        return self._shown

    def __deepcopy__(self, memo: object) -> JavaScript:
        return self


def file(**changed: Any) -> JavaScript:
    return JavaScript(
        "[object File]", **({"size": 1000, "type": "text/plain", "name": "pump.txt", "lastModified": 5} | changed)
    )


@simulated
async def test_a_file_of_javascripts_goes_through_as_it_is(world: World) -> None:
    a = join(world, "a")
    seen: list[Any] = []

    async def send(operation: Operation, sending: Sending) -> None:
        seen.append(operation.content)

    queue = opened(a, payloads="clone")
    one, blob = file(), JavaScript("[object Blob]", size=20, type="")
    await a.agent.start(queue.enqueue({"file": one, "tags": {"b", "a"}}, op_id="one"))
    await a.agent.start(queue.enqueue({"file": file(), "tags": frozenset({"a", "b"})}, op_id="one"))  # shows the same
    for other in (file(name="b.txt"), file(lastModified=6), file(size=1001), file(type=""), blob):
        with pytest.raises(IdentifierReused):
            await a.agent.start(queue.enqueue({"file": other, "tags": {"a", "b"}}, op_id="one"))
    await a.agent.start(queue.enqueue(blob, op_id="two"))
    assert 1020 < (await a.agent.start(queue.stats())).bytes < 1300, "its content counts"
    opened(a, sender=send)
    await world.until(lambda: len(seen) == 2)
    assert seen == [{"file": one, "tags": {"a", "b"}}, blob]


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({"rows": [JavaScript("[object Map]")]}, r"payload\.rows\[0\] is JavaScript's \[object Map\]: .*to_py"),
        ({"at": datetime.now(UTC)}, r"payload\.at is of type datetime, which cannot be stored"),
        ({"ids": {(1, 2)}}, r"payload\.ids is a set that holds \(1, 2\)"),
        ({"ids": {2**60}}, r"payload\.ids is 1152921504606846976, beyond"),
    ],
)
def test_what_cannot_go_is_refused_by_its_place(payload: Any, place: str) -> None:
    with pytest.raises(InvalidPayload, match=place):
        cloned(payload)


# -- what is no number of operations, no time, and nothing to flush by -------------------------------------------------


@simulated
async def test_zero_is_not_taken_for_the_default(world: World) -> None:
    a = join(world, "a")
    queue = opened(a)
    with pytest.raises(InvalidOptions, match="batch 0"):
        queue.batches(None, limit=0)  # type: ignore[arg-type]
    for wrong, named in (({"limit": 0}, "batch 0"), ({"timeout": 0}, "send_timeout 0"), ({"endpoint": ""}, "endpoint")):
        with pytest.raises(InvalidOptions, match=named):
            await a.agent.start(queue.flush(None, **({"endpoint": URL} | wrong)))  # type: ignore[arg-type]


@simulated
async def test_flushing_by_nothing_is_refused(world: World) -> None:
    a = join(world, "a")
    with pytest.raises(InvalidOptions, match="queue 'm': flush True .*name an endpoint, a sender or a loop"):
        opened(a, flush=True)
    assert not a.tab.elections
    opened(a, flush=True, sender=Ledger())
    assert list(a.tab.elections) == ["app:offline-queue:m"]
