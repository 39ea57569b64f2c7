"""Limits, totals, storage that is full or gone, and what a queue says of itself."""

from __future__ import annotations

from typing import Any

import pytest
from queue_kit import URL, Ledger, opened, put, simulated

from kit import join
from tabhelm.errors import InvalidOptions, InvalidPayload, QueueFull, QuotaExceeded
from tabhelm.fencing.schema import COUNTERS
from tabhelm.observe import QueueLost
from tabhelm.ports import Transaction
from tabhelm.queue import NewOperation, Operation, QueueOptions, Sending
from tabhelm.queue.totals import totals_key
from tabhelm.simulated import SimulatedReceiver, World


@simulated
async def test_a_full_queue_refuses_all_of_a_call_and_takes_it_when_there_is_room(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = opened(a, max_operations=5)
    await put(a, queue, *range(4))
    with pytest.raises(QueueFull, match="holds 4 of the 5 that max_operations allows, and 2 more") as caught:
        await a.agent.start(queue.enqueue_many([1, 2]))
    assert caught.value.limit == "max_operations" and caught.value.code == "queue-full"
    assert (await a.agent.start(queue.stats())).queued == 4
    await put(a, queue, 4)
    await put(a, queue, 4)  # known already: asks for no room
    with pytest.raises(QueueFull):
        await put(a, queue, 5)
    opened(a, endpoint=URL)
    await world.until(lambda: len(receiver.accepted) == 5)
    await world.sleep(1.0)
    assert len(await a.agent.start(queue.enqueue_many(range(5)))) == 5


@simulated
async def test_dead_letters_take_room_until_they_are_removed(world: World) -> None:
    SimulatedReceiver(world, URL, apply=lambda operation: "rejected")
    a = join(world, "a")
    queue = opened(a, endpoint=URL, max_bytes=20)
    await put(a, queue, 1, 2)
    await world.sleep(5.0)
    stats = await a.agent.start(queue.stats())
    assert (stats.dead, stats.bytes) == (2, 14)
    with pytest.raises(QueueFull, match="max_bytes"):
        await put(a, queue, 3)
    assert await a.agent.start(queue.remove_dead(["op-1", "op-1", "other"])) == 1
    await put(a, queue, 3)


@simulated
async def test_a_full_storage_stores_nothing_of_a_call_and_the_rest_can_be_sent(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = opened(a)
    await put(a, queue, 1)
    world.faults.quota = world.storage.size + 500
    with pytest.raises(QuotaExceeded):
        await a.agent.start(queue.enqueue_many(["x" * 100] * 20))
    stats = await a.agent.start(queue.stats())
    assert (stats.queued, stats.bytes) == (1, 7)
    assert len(world.storage.dump("tabhelm:app")["operations"]) == 1
    world.faults.quota = world.storage.size + 2_000  # room enough to work
    opened(a, endpoint=URL)
    await world.until(lambda: len(receiver.accepted) == 1)


@simulated
async def test_totals_are_counted_afresh_where_their_record_is_missing(world: World) -> None:
    a = join(world, "a")
    queue = opened(a, sender=Ledger(lambda operation, sending: "rejected"), rejected="block", payloads="json")
    for n in range(3):
        await put(a, queue, n, partition="p")
    await world.sleep(5.0)
    before = await a.agent.start(queue.stats())
    assert (before.queued, before.dead, before.blocked) == (2, 1, 1)

    async def forget(tx: Transaction) -> None:
        await tx.delete(COUNTERS, totals_key("app:offline-queue:m"))

    await a.agent.start(a.services.database.transaction([COUNTERS], "readwrite", forget))
    after = await a.agent.start(queue.stats())
    assert (after.queued, after.dead, after.blocked, after.bytes) == (2, 1, 1, before.bytes)
    await put(a, queue, 9, partition="p")
    records = world.storage.dump("tabhelm:app")["operations"]
    assert [record["ordinal"] for record in records] == [1, 2, 3, 4]


@simulated
async def test_what_was_acknowledged_and_wiped_is_reported_once(world: World) -> None:
    world.network.unreachable.add(URL)
    a = join(world, "a")
    queue = opened(a, endpoint=URL)
    await put(a, queue, 1, 2, 3)
    await world.sleep(2.0)
    world.storage.wipe()
    await world.sleep(10.0)
    await put(a, queue, 4)
    await world.sleep(10.0)
    lost = [event for event in a.services.events.recent if isinstance(event, QueueLost)]
    assert lost == [QueueLost("app:offline-queue:m", 3)]
    SimulatedReceiver(world, URL)
    world.network.unreachable.clear()
    await world.sleep(120.0)
    assert (await a.agent.start(queue.stats())).done == 1


@simulated
async def test_a_queue_that_was_empty_has_lost_nothing(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = opened(a, endpoint=URL)
    await put(a, queue, 1)
    await world.until(lambda: len(receiver.accepted) == 1)
    await world.sleep(1.0)
    world.storage.wipe()
    await world.sleep(10.0)
    await put(a, queue, 2)
    await world.until(lambda: len(receiver.accepted) == 2)
    assert not [event for event in a.services.events.recent if isinstance(event, QueueLost)]


# -- payloads that are no JSON -----------------------------------------------------------------------------------------


@simulated
async def test_a_payload_that_json_cannot_hold_goes_to_an_own_sender_as_it_was_when_it_was_enqueued(
    world: World,
) -> None:
    a = join(world, "a")
    seen: list[Any] = []

    async def send(operation: Operation, sending: Sending) -> None:
        assert operation.payload == ""
        seen.append(operation.content)

    payload = {"file": b"\x00\x01", "rows": [1, 2.5, None, True, "ä"], "deep": {"a": (1, 2)}}
    queue = opened(a, sender=send)

    async def enqueue() -> None:
        task = a.services.tasks.start(queue.enqueue(payload, op_id="op-1"), "enqueue")
        await a.ports.clock.sleep(0.0)
        payload["rows"].append("later")  # type: ignore[attr-defined]
        await task

    await a.agent.start(enqueue())
    await world.until(lambda: bool(seen))
    assert seen == [{"file": b"\x00\x01", "rows": [1, 2.5, None, True, "ä"], "deep": {"a": [1, 2]}}]
    await world.sleep(1.0)
    assert (await a.agent.start(queue.stats())).bytes == 0


@simulated
async def test_the_same_id_with_the_same_value_is_a_repetition_whatever_the_order_of_its_keys(world: World) -> None:
    a = join(world, "a")
    queue = opened(a, payloads="clone")
    await a.agent.start(queue.enqueue({"a": 1, "b": b"x"}, op_id="op-1"))
    await a.agent.start(queue.enqueue({"b": b"x", "a": 1.0}, op_id="op-1"))
    for other in ({"a": 1, "b": "x"}, {"a": True, "b": b"x"}, {"a": 1, "b": [b"x"]}, [1, b"x"]):
        with pytest.raises(ValueError, match="op-1"):
            await a.agent.start(queue.enqueue(other, op_id="op-1"))
    assert (await a.agent.start(queue.stats())).queued == 1


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({"rows": [{"at": object()}]}, r"payload\.rows\[0\]\.at is of type object"),
        ({"n": 2**60}, r"payload\.n is \d+, beyond"),
        ({1: 2}, "payload has the key 1 of type int"),
        (lambda: 1, "payload is of type function"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(payload: Any, place: str) -> None:
    with World(1) as world:

        async def main() -> None:
            a = join(world, "a")
            with pytest.raises(InvalidPayload, match=place):
                await a.agent.start(opened(a, payloads="clone").enqueue(payload))
            circle: list[Any] = []
            circle.append(circle)
            with pytest.raises(InvalidPayload, match="deeper"):
                await a.agent.start(opened(a, payloads="clone").enqueue(circle))

        world.run(main())


@simulated
async def test_json_payloads_are_refused_with_their_place_too(world: World) -> None:
    a = join(world, "a")
    with pytest.raises(InvalidPayload, match=r"payload\.rows\[1\] is of type bytes"):
        await a.agent.start(opened(a, endpoint=URL).enqueue({"rows": [1, b"x"]}))
    with pytest.raises(InvalidPayload, match=r"payload\.rows has the key 1 of type int"):
        await a.agent.start(opened(a, endpoint=URL).enqueue({"rows": {1: "one"}}))  # JSON would make a text of it
    with pytest.raises(InvalidPayload, match=r"payload\.x is nan"):
        await a.agent.start(opened(a, endpoint=URL).enqueue({"x": float("nan")}))


def test_a_value_needs_its_digest_and_size() -> None:
    from tabhelm.ports.database import Opaque

    for wrong in ({}, {"value_digest": "x" * 200}, {"value_digest": "ab", "value_size": -1}):
        with pytest.raises(InvalidPayload, match="op-1"):
            NewOperation("op-1", value=Opaque({}), **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match="both"):
        NewOperation("op-1", "1", value=Opaque({}), value_digest="ab")


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endpoint", ""), ("endpoint", 7), ("sender", "send"), ("mode", "one"), ("batch", 0), ("batch", 1001),
        ("batch", True), ("lanes", 17), ("lanes", 1.5), ("send_timeout", 0), ("send_timeout", float("nan")),
        ("rejected", "drop"), ("max_attempts", 0), ("base_delay", -1), ("max_operations", 0), ("max_bytes", "1 MB"),
        ("headers", 7), ("headers", {"Idempotency-Key": "x"}), ("headers", {"A": 1}), ("payloads", "text"),
    ],
)  # fmt: skip
def test_a_bad_option_is_refused_by_its_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOptions, match=option):
        QueueOptions(**{option: value})


def test_options_that_contradict_each_other_and_unknown_ones_are_refused() -> None:
    with pytest.raises(InvalidOptions, match="max_delay 1 s is shorter than base_delay 2 s"):
        QueueOptions(base_delay=2, max_delay=1)
    with pytest.raises(InvalidOptions, match="payloads 'clone' needs a sender"):
        QueueOptions(endpoint=URL, payloads="clone")
    with World(1) as world:

        async def main() -> None:
            a = join(world, "a")
            with pytest.raises(InvalidOptions, match="'shape' is unknown: known are base_delay, batch") as caught:
                opened(a, shape=2)
            listed = str(caught.value).partition("known are ")[2].split(", ")
            assert {"flush", "loop", "policy", "scope", "max_attempts"} <= set(listed) and listed == sorted(listed)
            for slip, meant in (
                *(("lane", "lanes"), ("flsh", "flush"), ("endpiont", "endpoint"), ("maxAttempts", "max_attempts")),
                ("sendTimeoutMs", r"send_timeout, which is in seconds"),
            ):
                with pytest.raises(InvalidOptions, match=rf"'{slip}' is unknown: did you mean {meant}\?"):
                    opened(a, **{slip: 2})
            with pytest.raises(InvalidOptions, match="'batch' is given beside options"):
                opened(a, options=QueueOptions(), batch=2)

        world.run(main())


def test_a_page_gives_the_same_options_in_its_own_words() -> None:
    options = QueueOptions.from_wire(
        {"endpoint": URL, "sendTimeoutMs": 1500, "maxAttempts": 3, "baseDelayMs": 100, "maxBytes": None, "lanes": 2}
    )
    assert options == QueueOptions(endpoint=URL, send_timeout=1.5, max_attempts=3, base_delay=0.1, lanes=2)
    for wrong, said in (
        ({"sendTimeoutMs": 0}, "sendTimeoutMs 0 .*milliseconds"),
        ({"maxAttempts": 0}, "maxAttempts 0"),
        ({"send_timeout": 1}, r"'send_timeout' is unknown: did you mean sendTimeoutMs\? Known are .*sendTimeoutMs"),
        ({"shape": 1}, "'shape' is unknown: known are .*sendTimeoutMs"),
        ({"baseDelayMs": 2000, "maxDelayMs": 1000}, "maxDelayMs .*baseDelayMs"),
    ):
        with pytest.raises(InvalidOptions, match=said):
            QueueOptions.from_wire(wrong)


@simulated
async def test_a_payload_has_one_text_whichever_side_wrote_it(world: World) -> None:
    a = join(world, "a")
    queue = opened(a)
    await a.agent.start(queue.enqueue({"title": "Größe ✓"}, op_id="op-1"))
    operation = NewOperation("op-1", '{"title":"Größe ✓"}')  # as JSON.stringify writes it
    assert await a.agent.start(queue.enqueue_all([operation])) == 0


@simulated
async def test_a_queue_that_a_tab_flushes_is_not_opened_with_other_options(world: World) -> None:
    # The tab would go by the first ones, and nobody would know.
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    opened(a, max_operations=9)  # it only enqueues
    queue = opened(a, endpoint=URL, batch=7)
    assert opened(a, endpoint=URL, batch=7).shared is opened(a).shared is queue.shared
    for other in ({"endpoint": URL}, {"endpoint": URL + "/2", "batch": 7}, {"sender": Ledger()}):
        with pytest.raises(InvalidOptions, match="queue 'm' is already open with other options"):
            opened(a, **other)
    opened(a, endpoint=URL, flush=False)
    await put(a, queue, 1)
    await world.until(lambda: len(receiver.accepted) == 1)
    for election in a.tab.elections.values():
        a.call(election.stop)
        await a.agent.start(election.stopped())
    ledger = Ledger()
    opened(a, sender=ledger, payloads="json")
    await put(a, queue, 2)
    await world.until(lambda: ledger.sent[-1:] == ["op-2"])
