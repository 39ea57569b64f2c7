"""The queue in its transactions: order, identity, epochs, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from queue_kit import BenchStore, operations

from tabhelm.errors import IdentifierReused, InvalidPayload, LeadershipLost
from tabhelm.fencing.epochs import EpochIssuer, EpochMemory, Grant
from tabhelm.fencing.schema import SCHEMA
from tabhelm.json_text import loads as read_json
from tabhelm.queue.claims import CLAIM_SIZE, Claim, Found
from tabhelm.queue.records import MAX_PAYLOAD_DEPTH, NewOperation, Outcome, draw_operation_id
from tabhelm.queue.store import RETENTION
from tabhelm.simulated import SimulatedAgent, World

R = "app:offline-queue:q"


class Bench:
    """One context with a store and an epoch issuer."""

    def __init__(self, world: World, name: str) -> None:
        self.agent: SimulatedAgent = world.agent(name)
        ports = world.ports(self.agent)
        database = ports.databases.database("tabhelm:app", SCHEMA)
        self.clock = ports.clock
        self.entropy = ports.entropy
        self.store = BenchStore(database, ports.clock, ports.entropy, R)
        self.issuer = EpochIssuer(database, ports.clock, ports.entropy, EpochMemory())

    async def grant(self) -> Grant:
        return await self.issuer.issue(R, self.agent.name, "web-locks", takeovers_seen=0, holds=lambda: True)


def simulated(function: Callable[[World, Bench], Coroutine[Any, Any, None]]) -> Callable[[int], None]:
    """Run the test inside one context, under several seeds."""

    @pytest.mark.parametrize("seed", range(6))
    def run(seed: int) -> None:
        with World(seed) as world:
            bench = Bench(world, "a")
            world.run(bench.agent.start(function(world, bench)))

    run.__doc__ = function.__doc__
    return run


def ids(found: Found) -> list[str]:
    return [operation.op_id for operation in operations(found)]


def claimed(found: Found) -> Claim:
    assert found.claim is not None
    return found.claim


def all_committed(claim: Claim) -> dict[str, Outcome]:
    return {each.op_id: Outcome(each.op_id, "committed") for each in claim.operations}


def op(number: int | str, partition: str = "p", payload: str = "1", fresh: bool = False) -> NewOperation:
    return NewOperation(f"op-{number}", payload, partition, fresh)


@simulated
async def test_order_is_kept_within_a_partition_and_a_waiting_one_holds_back_only_its_own(
    world: World, bench: Bench
) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(n, f"p{n % 3}") for n in range(9)])
    first = await store.claim(grant, 4)
    assert ids(first) == ["op-0", "op-3", "op-6", "op-1"] and not first.dead and first.due is None
    second = await store.claim(grant, 9, after=first.after)
    assert ids(second) == ["op-2", "op-5", "op-8"]
    assert (await store.claim(grant, 9)).claim is None  # all three partitions are in flight
    outcomes = {"op-0": Outcome("op-0", "retry", "busy"), "op-3": Outcome("op-3", "skipped")}
    assert await store.settle(grant, claimed(first), outcomes, {"op-0": 60.0}) == []
    died = await store.settle(grant, claimed(second), {"op-2": Outcome("op-2", "rejected", "bad title")})
    assert [(each.op_id, each.reason) for each in died] == [("op-2", "bad title")]
    third = await store.claim(grant, 99)
    assert ids(third) == ["op-1", "op-4", "op-7", "op-5", "op-8"]
    assert third.due is not None and 50 < third.due <= 60
    await store.settle(grant, claimed(third), {"op-1": Outcome("op-1", "committed")})
    stats = await store.stats()
    assert (stats.queued, stats.in_flight, stats.done, stats.dead) == (7, 0, 1, 1)
    await world.sleep(60.0)
    assert ids(await store.claim(grant, 99, after="p2"))[:3] == ["op-0", "op-3", "op-6"]


@simulated
async def test_the_same_id_again_does_nothing_and_another_payload_is_refused(world: World, bench: Bench) -> None:
    store, grant = bench.store, await bench.grant()
    assert await store.enqueue([op(1), op(2)]) == 2
    assert await store.enqueue([op(1), op(2), op(3), op(3)]) == 1
    assert await store.enqueue([op(1, fresh=True)]) == 0  # a repeated call may still say that its ids are fresh
    with pytest.raises(IdentifierReused, match="op-1"):
        await store.enqueue([op(9), op(1, payload="2")])
    with pytest.raises(IdentifierReused, match="op-1"):
        await store.enqueue([op(1, partition="elsewhere")])
    assert (await store.stats()).queued == 3  # all or none: op-9 was not stored
    claim = claimed(await store.claim(grant, 9))
    await store.settle(grant, claim, all_committed(claim))
    assert await store.enqueue([op(1)]) == 0  # known by its receipt
    with pytest.raises(IdentifierReused):
        await store.enqueue([op(1, payload="2")])
    assert (await store.stats()).done == 3


@simulated
async def test_what_did_not_commit_stays_though_its_neighbours_did(world: World, bench: Bench) -> None:
    # An own sender may say anything of a batch; what was committed is deleted by ranges.
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(n, f"p{n % 2}") for n in range(14)])
    claim = claimed(await store.claim(grant, 14))
    kept = {"op-2": "retry", "op-6": "skipped", "op-7": "unknown", "op-9": "rejected"}
    outcomes = {each.op_id: Outcome(each.op_id, kept.get(each.op_id, "committed")) for each in claim.operations}
    await store.settle(grant, claim, outcomes)
    assert ids(await store.claim(grant, 14)) == ["op-2", "op-6", "op-7"]
    assert [each.op_id for each in await store.dead_letters()] == ["op-9"]
    assert (await store.stats()).done == 10
    for number in range(14):
        assert await store.enqueue([op(number, f"p{number % 2}")]) == 0  # each is known: queued, dead or by its receipt


@simulated
async def test_a_dead_letter_put_back_between_two_that_are_in_flight_is_not_deleted_with_them(
    world: World, bench: Bench
) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(n) for n in range(4)])
    first = claimed(await store.claim(grant, 4))
    await store.settle(grant, first, {"op-1": Outcome("op-1", "rejected", "poison")})
    second = claimed(await store.claim(grant, 4))
    assert [each.op_id for each in second.operations] == ["op-0", "op-2", "op-3"]
    assert await store.retry_dead(["op-1"]) == 1
    await store.settle(grant, second, all_committed(second))
    assert ids(await store.claim(grant, 4)) == ["op-1"]
    assert (await store.stats()).done == 3


@simulated
async def test_receipts_are_forgotten_in_time(world: World, bench: Bench) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(n) for n in range(4)])
    for _ in range(2):
        claim = claimed(await store.claim(grant, 2))
        await store.settle(grant, claim, all_committed(claim))
    bench.agent.clock.wall_offset += RETENTION + 60
    await store.enqueue([op("late")])
    claim = claimed(await store.claim(grant, 2))
    await store.settle(grant, claim, all_committed(claim))
    assert await store.enqueue([op(0), op(3)]) == 2
    assert await store.enqueue([op("late")]) == 0


@simulated
async def test_a_stale_leader_can_neither_claim_nor_settle_and_the_next_recovers(world: World, bench: Bench) -> None:
    store, old = bench.store, await bench.grant()
    await store.enqueue([op(n) for n in range(3)])
    claim = claimed(await store.claim(old, 2))
    new = await bench.grant()
    with pytest.raises(LeadershipLost, match="newer-epoch"):
        await store.claim(old, 2)
    with pytest.raises(LeadershipLost, match="newer-epoch"):
        await store.settle(old, claim, {"op-0": Outcome("op-0", "committed")})
    with pytest.raises(LeadershipLost, match="newer-epoch"):
        await store.recover(old)
    assert (await store.stats()).in_flight == 2
    assert (await store.recover(new))[0] == 2
    again = claimed(await store.claim(new, 9))
    assert [each.op_id for each in again.operations] == ["op-0", "op-1", "op-2"]
    assert [bool(each.unknown_since) for each in again.operations] == [True, True, False]
    world.storage.wipe()
    with pytest.raises(Exception, match="storage-wiped|closed"):
        await store.claim(new, 1)


@simulated
async def test_everything_in_flight_is_recovered_and_unknown_since_its_claim(world: World, bench: Bench) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(1)])
    began = bench.clock.wall()
    first = claimed(await store.claim(grant, 1))
    await world.sleep(500.0)
    assert (await store.recover(grant))[0] == 1  # its own epoch's: left behind by a loop that ended
    again = claimed(await store.claim(grant, 1))
    (operation,) = again.operations
    assert began <= first.at == operation.unknown_since < began + 100.0
    # Whoever comes late with what was taken over writes nothing.
    assert await store.settle(grant, first, {"op-1": Outcome("op-1", "rejected")}) == []
    await world.sleep(500.0)
    await store.settle(grant, again, {"op-1": Outcome("op-1", "unknown")})
    (operation,) = claimed(await store.claim(grant, 1)).operations
    assert operation.unknown_since == first.at  # the first attempt counts


@simulated
async def test_the_least_retention_ever_heard_counts(world: World, bench: Bench) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(1)])
    claim = claimed(await store.claim(grant, 1))
    await store.settle(grant, claim, {"op-1": Outcome("op-1", "unknown")})
    for seconds in (1000.0, 2 * RETENTION):
        await store.note_retention(seconds)
    assert await store.recover(grant) == (0, 1000.0)
    bench.agent.clock.wall_offset += 850.0
    found = await store.claim(grant, 1, retention=1000.0)
    assert ids(found) == ["op-1"] and not found.dead
    await store.settle(grant, claimed(found), {})
    bench.agent.clock.wall_offset += 100.0  # some of it is left for the request's way
    found = await store.claim(grant, 1, retention=1000.0)
    assert [each.reason for each in found.dead] == ["outcome-unknown"] and not operations(found)


@simulated
async def test_dead_letters_are_listed_retried_in_their_old_place_and_removed(world: World, bench: Bench) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(n) for n in range(3)])
    claim = claimed(await store.claim(grant, 2))
    await store.settle(grant, claim, {each.op_id: Outcome(each.op_id, "rejected", "no") for each in claim.operations})
    assert [(each.op_id, each.reason) for each in await store.dead_letters()] == [("op-0", "no"), ("op-1", "no")]
    assert await store.retry_dead(["op-0", "unknown"]) == 1
    assert await store.remove_dead(["op-1", "op-2"]) == 1
    assert ids(await store.claim(grant, 9)) == ["op-0", "op-2"]
    assert await store.dead_letters() == []


@simulated
async def test_an_unknown_outcome_older_than_the_receivers_memory_is_never_sent_again(
    world: World, bench: Bench
) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(1), op(2)])
    claim = claimed(await store.claim(grant, 1))
    await store.settle(grant, claim, {"op-1": Outcome("op-1", "unknown", "no answer")})
    bench.agent.clock.wall_offset += RETENTION + 60
    found = await store.claim(grant, 9)
    assert ids(found) == ["op-2"]
    assert [(each.op_id, each.reason) for each in found.dead] == [("op-1", "outcome-unknown")]
    assert [each.op_id for each in await store.dead_letters()] == ["op-1"]


@simulated
async def test_a_clock_that_jumped_back_does_not_hold_an_operation_for_ever(world: World, bench: Bench) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(1)])
    claim = claimed(await store.claim(grant, 1))
    await store.settle(grant, claim, {"op-1": Outcome("op-1", "retry")}, {"op-1": 10.0})
    assert ids(await store.claim(grant, 1)) == []
    bench.agent.clock.wall_offset -= 30.0
    assert ids(await store.claim(grant, 1)) == ["op-1"]


@pytest.mark.parametrize("seed", range(6))
def test_many_contexts_enqueue_at_once_and_nothing_is_lost(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            benches = [Bench(world, f"b{n}") for n in range(4)]

            async def fill(bench: Bench) -> None:
                for n in range(25):
                    operation = NewOperation(draw_operation_id(bench.clock, bench.entropy), str(n), bench.agent.name)
                    await bench.store.enqueue([operation])

            await asyncio.gather(*(bench.agent.start(fill(bench)) for bench in benches))
            first = benches[0]

            async def drain() -> None:
                grant = await first.grant()
                claim = claimed(await first.store.claim(grant, 999))
                assert len({each.op_id for each in claim.operations}) == 100
                for bench in benches:
                    own = [each.payload for each in claim.operations if each.partition == bench.agent.name]
                    assert own == [str(n) for n in range(25)]

            await first.agent.start(drain())

        world.run(main())


def test_more_than_a_page_of_blocked_operations_does_not_hide_those_behind() -> None:
    with World(1) as world:
        bench = Bench(world, "a")

        async def main() -> None:
            store, grant = bench.store, await bench.grant()
            await store.enqueue([op(n, "stuck") for n in range(450)] + [op("free", "other")])
            claim = claimed(await store.claim(grant, 1, after="other"))
            assert claim.operations[0].op_id == "op-0"
            await store.settle(grant, claim, {"op-0": Outcome("op-0", "retry")}, {"op-0": 100.0})
            found = await store.claim(grant, 10)
            assert ids(found) == ["op-free"] and found.due is not None

        world.run(bench.agent.start(main()))


def test_a_payload_that_no_receiver_would_read_is_refused() -> None:
    def nested(levels: int) -> str:
        return "[" * levels + "]" * levels

    assert read_json('{"operations":[{"payload":' + nested(MAX_PAYLOAD_DEPTH) + "}]}")
    NewOperation("op-1", nested(MAX_PAYLOAD_DEPTH))
    NewOperation("op-1", "[" + "[]," * 1000 + '"' + "[" * 1000 + '"]')  # wide is not deep, and a text is no bracket
    with pytest.raises(InvalidPayload, match="op-1.*deeper than 490"):
        NewOperation("op-1", nested(MAX_PAYLOAD_DEPTH + 1))


@simulated
async def test_large_payloads_are_claimed_a_few_at_a_time(world: World, bench: Bench) -> None:
    store, grant = bench.store, await bench.grant()
    large = '"' + "x" * (CLAIM_SIZE * 2 // 5) + '"'
    await store.enqueue([op(n, f"p{n}", large) for n in range(5)] + [op("huge", "p9", large * 4), op("small", "p9")])
    seen: list[list[str]] = []
    while (found := await store.claim(grant, 100)).claim is not None:
        seen.append(ids(found))
        await store.settle(grant, found.claim, all_committed(found.claim))
    assert seen == [["op-0", "op-1"], ["op-2", "op-3"], ["op-4"], ["op-huge"], ["op-small"]]


@pytest.mark.parametrize(
    "change", [{"op_id": ""}, {"op_id": "x" * 300}, {"op_id": 7}, {"op_id": "ä"}, {"partition": "a\n"}, {"payload": ""}]
)
def test_bad_operations_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload):
        NewOperation(**{"op_id": "op-1", "payload": "1", "partition": "p", **change})
