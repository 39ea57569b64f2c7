"""What a call costs does not depend on what else is in the queue: counted in records that the database hands out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from queue_kit import BenchStore, operations

from tabhelm.fencing.epochs import EpochIssuer, EpochMemory, Grant
from tabhelm.fencing.schema import SCHEMA
from tabhelm.queue.records import NewOperation, Outcome
from tabhelm.simulated import World
from tabhelm.simulated.transaction import AgentTransaction

R = "app:offline-queue:q"


class Cost:
    """Requests made, and records read and written, since the last reset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests = self.read = self.written = 0
        original = AgentTransaction._request

        def counted(tx: AgentTransaction, operation: Callable[[], Any]) -> Any:
            def perform() -> Any:
                result = operation()
                self.read += len(result) if isinstance(result, list) and result and isinstance(result[0], dict) else 1
                return result

            self.requests += 1
            return original(tx, perform)

        def erased(tx: AgentTransaction, data: Any, keys: Any) -> None:
            self.written += len(keys)
            erase(tx, data, keys)

        def wrote(tx: AgentTransaction, data: Any, value: Any, path: str, **options: Any) -> Any:
            self.written += 1
            return write(tx, data, value, path, **options)

        erase, write = AgentTransaction._erase, AgentTransaction._write
        monkeypatch.setattr(AgentTransaction, "_request", counted)
        monkeypatch.setattr(AgentTransaction, "_erase", erased)
        monkeypatch.setattr(AgentTransaction, "_write", wrote)

    async def of(self, call: Coroutine[Any, Any, Any]) -> tuple[int, int, int]:
        self.requests = self.read = self.written = 0
        self.result = await call
        return self.requests, self.read, self.written


def run(test: Callable[[BenchStore, Grant, Cost], Coroutine[Any, Any, None]], cost: Cost) -> None:
    with World(1) as world:
        agent = world.agent("a")
        ports = world.ports(agent)
        database = ports.databases.database("tabhelm:app", SCHEMA)
        store = BenchStore(database, ports.clock, ports.entropy, R)
        issuer = EpochIssuer(database, ports.clock, ports.entropy, EpochMemory())

        async def main() -> None:
            grant = await issuer.issue(R, "a", "web-locks", takeovers_seen=0, holds=lambda: True)
            await test(store, grant, cost)

        world.run(agent.start(main()), limit=10_000.0)


def many(count: int, partition: Callable[[int], str], first: int = 0) -> list[NewOperation]:
    return [NewOperation(f"op-{n}", '{"n":1}', partition(n), fresh=True) for n in range(first, first + count)]


Shape = Callable[[BenchStore, Grant, int], Coroutine[Any, Any, None]]


async def one_partition(store: BenchStore, grant: Grant, size: int) -> None:
    await store.enqueue(many(size, lambda n: "p"))


async def many_partitions(store: BenchStore, grant: Grant, size: int) -> None:
    await store.enqueue(many(size, lambda n: f"p{n:06}"))


async def waiting(store: BenchStore, grant: Grant, size: int, outcome: str = "retry") -> None:
    """Long partitions that wait, before and between those that may go."""
    await store.enqueue(many(size, lambda n: f"held{n % max(1, size // 10):06}"))
    while (found := await store.claim(grant, 1000)).claim is not None:
        heads = {each.partition: each for each in reversed(operations(found))}
        outcomes = {each.op_id: Outcome(each.op_id, outcome) for each in heads.values()}  # type: ignore[arg-type]
        delays = {op_id: 500.0 for op_id in outcomes} if outcome == "retry" else {}
        await store.settle(grant, found.claim, outcomes, delays, rejected="block")
    await store.enqueue(many(200, lambda n: f"held{n % 20:06}x", first=size))


async def blocked(store: BenchStore, grant: Grant, size: int) -> None:
    await waiting(store, grant, size, "rejected")


async def dead(store: BenchStore, grant: Grant, size: int) -> None:
    """Letters that nobody has looked at."""
    await store.enqueue(many(size, lambda n: "p"))
    while (found := await store.claim(grant, 1000)).claim is not None:
        outcomes = {each.op_id: Outcome(each.op_id, "rejected") for each in operations(found)}
        await store.settle(grant, found.claim, outcomes)
    await store.enqueue(many(200, lambda n: "p", first=size))


@pytest.mark.parametrize("shape", [one_partition, many_partitions, waiting, blocked, dead])
def test_a_claim_costs_the_same_whatever_is_queued(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """With some hundred operations and with thousands: no more than half as much again of anything."""
    costs: dict[int, list[tuple[int, int, int]]] = {}
    cost = Cost(monkeypatch)
    for size in (200, 6000):

        async def measure(store: BenchStore, grant: Grant, cost: Cost, size: int = size) -> None:
            await shape(store, grant, size)
            for _ in range(2):
                found = await cost.of(store.claim(grant, 100))
                claim = cost.result.claim
                assert len(claim.operations) == 100
                outcomes = {each.op_id: Outcome(each.op_id, "committed") for each in claim.operations}
                settled = await cost.of(store.settle(grant, claim, outcomes))
                costs.setdefault(size, []).append(found)
                costs[size].append(settled)
                costs[size].append(await cost.of(store.stats()))

        run(measure, cost)
    small, large = costs[200], costs[6000]
    for few, more in zip(small, large, strict=True):
        for before, after in zip(few, more, strict=True):
            assert after <= before * 1.5 + 130, (small, large)  # 130: one look at partitions
    assert max(requests for requests, _, _ in large) <= 60


def test_a_claim_that_finds_nothing_but_waiting_partitions_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 3,000 waiting partitions was just written to again, so that each says that it may be ready."""

    async def measure(store: BenchStore, grant: Grant, cost: Cost) -> None:
        await waiting(store, grant, 3000)
        while (found := await store.claim(grant, 1000)).claim is not None:
            await store.settle(grant, found.claim, {each.op_id: Outcome("", "committed") for each in operations(found)})
        await store.enqueue(many(300, lambda n: f"held{n % 300:06}", first=9000))
        after, looks = "", 0
        while True:
            _, read, _ = await cost.of(store.claim(grant, 100, after=after))
            assert cost.result.claim is None and read < 4000
            after, looks = cost.result.after, looks + 1
            if cost.result.due > 0:
                break
        assert looks <= 3
        assert (await cost.of(store.claim(grant, 100)))[1] < 300  # now it is known again

    run(measure, Cost(monkeypatch))
