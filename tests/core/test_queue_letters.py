"""Dead letters: let the partition go on, or block it; listed, retried, removed, exported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from queue_kit import Ledger, opened, put, reasons, simulated

from kit import join
from tabhelm.errors import IdentifierReused
from tabhelm.ports.database import Opaque
from tabhelm.queue import BatchSender, Operation, Outcome, Sending
from tabhelm.queue.letters import export
from tabhelm.simulated import World


@simulated
async def test_a_blocked_partition_waits_for_a_person_and_only_that_one(world: World) -> None:
    a = join(world, "a")
    good: set[str] = set()

    def decide(operation: Operation, sending: Sending) -> Any:
        return None if operation.op_id in good or operation.partition == "free" else Outcome.rejected("no title")

    ledger = Ledger(decide)
    queue = opened(a, sender=ledger, rejected="block")
    await put(a, queue, 1, 2, 3, partition="case")
    await put(a, queue, 4, 5, partition="free")
    await world.sleep(5.0)
    assert ledger.sent == ["op-1", "op-4", "op-5"]
    stats = await a.agent.start(queue.stats())
    assert (stats.queued, stats.dead, stats.blocked, stats.done) == (2, 1, 1, 2)
    await put(a, queue, 6, partition="case")  # says that there is work, and is not sent
    await world.sleep(120.0)
    assert ledger.sent == ["op-1", "op-4", "op-5"]
    await put(a, queue, 1, partition="case")  # known, though it is dead
    with pytest.raises(IdentifierReused):
        await a.agent.start(queue.enqueue("other", partition="case", op_id="op-1"))
    good.update(["op-1", "op-3", "op-6"])
    assert await a.agent.start(queue.retry_dead(["op-1"])) == 1
    await world.sleep(5.0)
    assert ledger.sent[3:] == ["op-1", "op-2"]
    assert await reasons(a, queue) == {"op-2": "no title"}
    assert await a.agent.start(queue.remove_dead(["op-2"])) == 1
    await world.sleep(5.0)
    assert ledger.sent[5:] == ["op-3", "op-6"]
    stats = await a.agent.start(queue.stats())
    assert (stats.queued, stats.dead, stats.blocked, stats.done, stats.bytes) == (0, 0, 0, 5, 0)


@simulated
async def test_a_block_outlives_its_leader(world: World) -> None:
    a = join(world, "a")
    queue = opened(a, sender=Ledger(lambda operation, sending: "rejected"), rejected="block")
    await put(a, queue, 1, 2)
    await world.sleep(2.0)
    a.agent.die()
    b = join(world, "b")
    ledger = Ledger()
    theirs = opened(b, sender=ledger, rejected="block")
    await world.until(lambda: b.leading)
    await world.sleep(60.0)
    assert ledger.sent == []
    await b.agent.start(theirs.retry_dead(["op-1"]))
    await world.until(lambda: ledger.sent == ["op-1", "op-2"], within=2.0)


@simulated
async def test_an_operation_of_unknown_outcome_that_is_too_old_blocks_as_well(world: World) -> None:
    a = join(world, "a")

    def fail(operation: Operation, sending: Sending) -> None:
        raise RuntimeError("down")

    ledger = Ledger(fail)
    queue = opened(a, sender=ledger, rejected="block", base_delay=600.0, max_delay=600.0)
    await put(a, queue, 1, 2)
    await world.until(lambda: ledger.sent == ["op-1"])
    await world.sleep(1.0)  # until that is settled
    a.agent.clock.wall_offset += 31 * 86_400.0
    await world.sleep(60.0)
    assert ledger.sent == ["op-1"]
    assert await reasons(a, queue) == {"op-1": "outcome-unknown"}
    assert (await a.agent.start(queue.stats())).blocked == 1


@simulated
async def test_several_rejected_at_once_leave_one_stopper(world: World) -> None:
    a = join(world, "a")

    async def send(operations: Any, sending: Sending) -> list[str]:
        return ["rejected"] * len(operations)

    queue = opened(a, flush=False)
    await put(a, queue, 1, 2)
    opened(a, sender=BatchSender(send), rejected="block", payloads="json")
    await world.sleep(5.0)
    stats = await a.agent.start(queue.stats())
    assert (stats.dead, stats.blocked) == (2, 1)
    await a.agent.start(queue.remove_dead(["op-1", "op-2"]))
    stats = await a.agent.start(queue.stats())
    assert (stats.dead, stats.blocked) == (0, 0)
    assert world.storage.dump("tabhelm:app")["operations"] == []


@simulated
async def test_dead_letters_can_be_exported(world: World) -> None:
    a = join(world, "a")
    queue = opened(a, sender=Ledger(lambda operation, sending: Outcome.rejected("no title")))
    await a.agent.start(queue.enqueue({"title": "ä", "file": b"12345"}, op_id="op-1", partition="case"))
    began = a.ports.clock.wall()
    await world.sleep(5.0)
    (letter,) = json.loads(await a.agent.start(queue.export_dead()))
    assert letter["payload"] == {"title": "ä", "file": "5 bytes"}
    assert (letter["id"], letter["partition"], letter["reason"]) == ("op-1", "case", "no title")
    assert letter["attempts"] == 0 and abs(letter["enqueued_at"] - began) < 5 and letter["died_at"] >= began - 1


@simulated
async def test_a_retried_letter_is_sent_before_what_came_after_it(world: World) -> None:
    a = join(world, "a")
    ledger = Ledger(
        lambda operation, sending: "rejected" if operation.op_id == "op-1" and sending.attempt == 1 else None
    )
    first = True

    def decide(operation: Operation, sending: Sending) -> Any:
        nonlocal first
        if operation.op_id == "op-1" and first:
            first = False
            return "rejected"
        return Outcome.retry(after=30.0) if operation.op_id == "op-2" and held else None

    held = True
    ledger = Ledger(decide)
    queue = opened(a, sender=ledger)
    await put(a, queue, 1, 2, 3)
    await world.until(lambda: "op-2" in ledger.sent)
    await a.agent.start(queue.retry_dead(["op-1"]))
    held = False
    await world.sleep(90.0)
    assert ledger.sent == ["op-1", "op-2", "op-1", "op-2", "op-3"]


def test_a_letter_that_json_cannot_hold_does_not_keep_the_others_from_being_exported() -> None:
    circle: dict[str, Any] = {"name": "circle"}
    circle["self"] = circle
    deep: list[Any] = []
    same = [1]
    for _ in range(3_000):
        deep = [deep]
    # What a browser's values become in Python: a Map, a Set, a Date, NaN, a bigint, half a character.
    strange = {1: "one", (2, 3): {4}, "date": object(), "nan": float("nan"), "big": 2**80, "half": "\ud800"}
    letters = [
        Operation("q", f"op-{at}", "p", "", "d", 1.0, at, value=Opaque(value))
        for at, value in enumerate([circle, deep, strange, {"same": same, "twice": same}])
    ]

    def not_json(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = export(letters)
    assert text.isascii()
    payloads = [letter["payload"] for letter in json.loads(text, parse_constant=not_json)]
    assert payloads[0] == {"name": "circle", "self": "(again)"}
    assert "(deeper)" in json.dumps(payloads[1])
    assert payloads[2]["1"] == "one" and payloads[2]["date"] == "(object)" and payloads[2]["nan"] == "(nan)"
    assert payloads[2]["[2, 3]"] == [4] and payloads[2]["big"] == 2**80
    assert payloads[3] == {"same": [1], "twice": [1]}
