"""What the conformance cases cannot say: how the simulated ports behave when agents freeze, hang and die."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tabhelm.errors import (
    DatabaseBlocked,
    DatabaseClosed,
    DatabaseDenied,
    DatabaseError,
    QuotaExceeded,
    Unreachable,
)
from tabhelm.ports import Database, HttpAnswer, Index, Ports, Schema, Store, Transaction
from tabhelm.simulated import Faults, HttpRequest, NextAnswer, SimulatedAgent, World

SCHEMA = Schema(1, (Store("s", "id"), Store("other", "id")))
SEEDS = range(15)


def tab(world: World, name: str) -> tuple[SimulatedAgent, Ports]:
    agent = world.agent(name)
    return agent, world.ports(agent)


async def put(database: Database, *ids: int, durability: Any = "strict", store: str = "s") -> None:
    async def body(tx: Transaction) -> None:
        await tx.put_all(store, [{"id": each} for each in ids])

    await database.transaction([store], "readwrite", body, durability=durability)


async def count(database: Database) -> int:
    async def body(tx: Transaction) -> int:
        return await tx.count("s")

    return await database.transaction(["s"], "readonly", body)


# ---- locks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_death_hands_the_lock_on(seed: int) -> None:
    with World(seed) as world:
        (a, first), (b, second) = tab(world, "a"), tab(world, "b")

        async def main() -> None:
            await a.start(first.locks.acquire("l"))
            waiting = b.start(second.locks.acquire("l"))
            await world.sleep(1.0)
            assert not waiting.done()
            a.die()
            await world.sleep(0.02)
            assert waiting.done()

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_waiter_is_granted_the_lock_and_starves_the_living(seed: int) -> None:
    with World(seed) as world:
        (a, first), (b, second), (c, third) = tab(world, "a"), tab(world, "b"), tab(world, "c")

        async def main() -> None:
            lock = await a.start(first.locks.acquire("l"))
            frozen = b.start(second.locks.acquire("l"))
            await world.sleep(0.1)
            living = c.start(third.locks.acquire("l"))
            await world.sleep(0.1)
            b.freeze()
            assert lock is not None
            a.call(lock.release)
            await world.sleep(20.0)
            assert not frozen.done() and not living.done()
            b.thaw()
            await world.sleep(0.1)
            got = await frozen
            assert got is not None and got.held
            b.call(got.release)
            await living

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_dropping_before_the_freeze_lets_the_living_pass(seed: int) -> None:
    with World(seed) as world:
        (a, first), (b, second), (c, third) = tab(world, "a"), tab(world, "b"), tab(world, "c")
        b.call(second.locks.admit, "page")

        async def main() -> None:
            lock = await a.start(first.locks.acquire("l"))
            b.start(second.locks.acquire("l", owner="page"))
            await world.sleep(world.rng.uniform(0.0, 0.01))
            living = c.start(third.locks.acquire("l"))
            assert lock is not None
            a.call(lock.release)
            await world.sleep(world.rng.uniform(0.0, 0.01))
            b.call(second.locks.drop, "page")
            b.freeze()
            await world.sleep(0.1)
            assert living.done(), "a withdrawn request of a frozen agent is in the way"
            b.die()  # its task ended with LockWithdrawn, which nobody awaits

        world.run(main())


def test_contention_evicts_a_cached_holder_but_a_queued_waiter_does_not() -> None:
    with World(3) as world:
        (a, first), (b, second), (c, third) = tab(world, "a"), tab(world, "b"), tab(world, "c")

        async def main() -> None:
            await a.start(first.locks.acquire("l"))
            waiting = b.start(second.locks.acquire("l"))
            await world.sleep(0.1)
            a.stop()
            a.evict = a.die
            await world.sleep(45.0)
            assert not waiting.done()
            await c.start(third.locks.query())
            await world.sleep(0.1)
            assert waiting.done() and not a.alive

        world.run(main())


# ---- channel --------------------------------------------------------------------------------------------------------


def test_a_frozen_agent_hears_a_hung_one_hears_later_a_lossy_one_sometimes() -> None:
    with World(1) as world:
        (a, first), (b, second) = tab(world, "a"), tab(world, "b")
        sender, receiver = first.channels.open("c"), second.channels.open("c")
        got: list[object] = []
        receiver.subscribe(got.append)

        async def main() -> None:
            b.freeze()
            a.call(sender.post, "1")
            await world.sleep(0.1)
            assert got == ["1"]
            b.thaw()
            b.hang(5.0)
            a.call(sender.post, "2")
            await world.sleep(4.0)
            assert got == ["1"]
            await world.sleep(2.0)
            assert got == ["1", "2"]
            world.faults.channel_loss = 0.5
            for _ in range(100):
                a.call(sender.post, "x")
            await world.sleep(1.0)
            assert 20 < len(got) < 80
            world.faults.channel_loss = 0.0
            world.channel_hub.post("c", None)
            world.channel_hub.post("c", 42)
            await world.sleep(0.1)
            assert got[-2:] == [None, 42]

        world.run(main())


# ---- database -------------------------------------------------------------------------------------------------------


def left_after_death(seed: int) -> int:
    with World(seed) as world:
        (a, first), (b, second) = tab(world, "a"), tab(world, "b")
        database, reader = (ports.databases.database("d", SCHEMA) for ports in (first, second))

        async def main() -> int:
            await b.start(put(reader, 0))
            acknowledged = a.start(put(database, 1, 2, 3))
            await world.sleep(world.rng.uniform(0.0, 0.02))
            done = acknowledged.done()
            a.die()
            found = await b.start(count(reader))
            assert found == 4 or not done, "acknowledged and lost"
            return found

        return world.run(main())


def test_death_in_a_transaction_leaves_all_or_nothing_and_both_happen() -> None:
    assert {left_after_death(seed) for seed in range(60)} == {1, 4}


def left_after_death_before_complete(seed: int) -> int:
    with World(seed, faults=Faults(database_delay=(0.0, 0.0), commit_delay=(1.0, 1.0))) as world:
        (a, first), (b, second) = tab(world, "a"), tab(world, "b")
        database, reader = (ports.databases.database("d", SCHEMA) for ports in (first, second))
        success: list[str] = []

        async def body(tx: Transaction) -> None:
            await tx.put("s", {"id": 1})
            success.append("request success")

        async def main() -> int:
            a.start(database.transaction(["s"], "readwrite", body))
            await world.sleep(0.5)
            assert success
            a.die()
            return await b.start(count(reader))

        return world.run(main())


def test_an_agent_may_die_between_request_success_and_complete() -> None:
    survived = sum(left_after_death_before_complete(seed) for seed in range(40))
    assert 5 < survived < 35, f"{survived} of 40 commits survived"


def left_after_power_cut(seed: int) -> int:
    with World(seed) as world:
        a, ports = tab(world, "a")
        database = ports.databases.database("d", SCHEMA)

        async def main() -> int:
            await a.start(put(database, 1, durability="relaxed"))
            await a.start(put(database, 2, durability="strict"))
            await a.start(put(database, 3, durability="relaxed"))
            await a.start(put(database, 4, durability="relaxed"))
            world.power_cut()
            after, again = tab(world, "after")
            return await after.start(count(again.databases.database("d", SCHEMA)))

        return world.run(main())


def test_relaxed_commits_may_be_lost_in_a_power_cut_strict_ones_never() -> None:
    assert {left_after_power_cut(seed) for seed in range(40)} == {2, 3, 4}


def test_wiped_storage_closes_and_opens_empty() -> None:
    with World(2) as world:
        a, ports = tab(world, "a")
        database = ports.databases.database("d", SCHEMA)
        events: list[str] = []
        database.subscribe(events.append)

        async def slow(tx: Transaction) -> None:
            for number in range(200):
                await tx.put("s", {"id": number})

        async def main() -> None:
            await a.start(put(database, 1))
            running = a.start(database.transaction(["s"], "readwrite", slow))
            await world.sleep(0.05)
            world.storage.wipe()
            with pytest.raises(DatabaseClosed):
                await running
            assert await a.start(count(database)) == 0
            assert events == ["opened", "closed", "opened"]

        world.run(main())


def test_quota_denial_and_a_hung_open() -> None:
    with World(2) as world:
        a, ports = tab(world, "a")
        database = ports.databases.database("d", SCHEMA)
        events: list[str] = []
        database.subscribe(events.append)

        async def main() -> None:
            world.faults.storage_denied = True
            with pytest.raises(DatabaseDenied):
                await a.start(put(database, 1))
            world.faults.storage_denied = False
            world.faults.storage_hangs = True
            before = world.loop.time()
            with pytest.raises(DatabaseBlocked):
                await a.start(put(database, 1))
            assert world.loop.time() - before == pytest.approx(10.0, rel=0.01)
            assert events == ["blocked"]
            world.faults.storage_hangs = False
            await a.start(put(database, 1))
            world.faults.quota = world.storage.size + 12
            with pytest.raises(QuotaExceeded):
                await a.start(put(database, 2, 3))
            assert await a.start(count(database)) == 1
            await a.start(put(database, 2))

        world.run(main())


def test_an_upgrade_asks_the_old_connection_to_go_and_the_old_version_stays_out() -> None:
    newer = Schema(2, (Store("s", "id", indexes=(Index("by_tag", "tag"),)), Store("new", "id")))
    with World(4) as world:
        (a, first), (b, second) = tab(world, "a"), tab(world, "b")
        old = first.databases.database("d", SCHEMA)
        events: list[str] = []
        old.subscribe(events.append)

        async def by_tag(tx: Transaction) -> Any:
            return await tx.get("s", "t", index="by_tag")

        async def main() -> None:
            await a.start(put(old, 1))
            upgraded = second.databases.database("d", newer)
            await b.start(put(upgraded, 1, store="new"))
            assert await b.start(upgraded.transaction(["s"], "readonly", by_tag)) is None
            await world.sleep(0.01)
            assert events == ["opened", "versionchange"]
            with pytest.raises(DatabaseError, match="newer"):
                await a.start(put(old, 2))
            stubborn, third = tab(world, "c")
            await stubborn.start(count(third.databases.database("d", newer)))
            stubborn.freeze()
            newest = second.databases.database("d", Schema(3, newer.stores))
            with pytest.raises(DatabaseBlocked):
                await b.start(count(newest))
            stubborn.die()
            assert await b.start(count(newest)) == 1

        world.run(main())


def test_a_frozen_writer_blocks_others_until_the_browser_aborts_it() -> None:
    with World(5) as world:
        (a, first), (b, second) = tab(world, "a"), tab(world, "b")
        mine, theirs = (ports.databases.database("d", SCHEMA) for ports in (first, second))

        async def slow(tx: Transaction) -> None:
            for number in range(100):
                await tx.put("s", {"id": number})

        async def main() -> None:
            await b.start(put(theirs, 1000))
            stuck = a.start(mine.transaction(["s"], "readwrite", slow))
            await world.sleep(0.03)
            a.freeze()
            waiting = b.start(put(theirs, 1001))
            await b.start(put(theirs, 1, store="other"))
            await world.sleep(50.0)
            assert not waiting.done()
            await waiting
            assert await b.start(count(theirs)) == 2
            a.thaw()
            with pytest.raises(DatabaseError, match="stood still"):
                await stuck

        world.run(main())


# ---- http -----------------------------------------------------------------------------------------------------------


class Server:
    def __init__(self, world: World) -> None:
        self.bodies: list[str | None] = []
        world.network.route("https://here/", self.handle)

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        self.bodies.append(request.body)
        return HttpAnswer(200, {"x": request.headers.get("x-sent", "")}, f"got {request.body}")


async def post(ports: Ports, body: str, timeout: float = 5.0) -> HttpAnswer:
    return await ports.http.send("POST", "https://here/api", headers={"X-Sent": "1"}, body=body, timeout=timeout)


def test_requests_reach_the_receiver_and_faults_come_in_order() -> None:
    with World(1) as world:
        server = Server(world)
        a, ports = tab(world, "a")

        async def main() -> None:
            assert await a.start(post(ports, "1")) == HttpAnswer(200, {"x": "1"}, "got 1")
            world.network.script += [
                NextAnswer(answer=HttpAnswer(503, {}, "<html>")),
                NextAnswer(lose_request=True),
                NextAnswer(lose_answer=True),
                NextAnswer(delay=60.0),
            ]
            assert (await a.start(post(ports, "2"))).status == 503
            for body in ("3", "4", "5"):
                with pytest.raises(Unreachable):
                    await a.start(post(ports, body))
            assert server.bodies == ["1", "4"], "a lost answer is processed, a lost request is not"
            a.online = False
            with pytest.raises(Unreachable):
                await a.start(post(ports, "6"))
            a.online = True
            world.network.unreachable.add("https://here/")
            with pytest.raises(Unreachable):
                await a.start(post(ports, "7"))
            assert server.bodies == ["1", "4"]

        world.run(main())


def test_a_request_in_flight_is_delivered_though_its_sender_dies_or_freezes() -> None:
    with World(1, faults=Faults(http_delay=(1.0, 1.0))) as world:
        server = Server(world)
        (a, first), (b, second) = tab(world, "a"), tab(world, "b")

        async def main() -> None:
            a.start(post(first, "dying"))
            frozen = b.start(post(second, "frozen", timeout=600.0))
            await world.sleep(0.5)
            a.die()
            b.freeze()
            await world.sleep(60.0)
            assert server.bodies == ["dying", "frozen"]
            assert not frozen.done()
            b.thaw()
            assert (await frozen).status == 200

        world.run(main())


def processed_after_cancelling(seed: int) -> int:
    with World(seed, faults=Faults(http_delay=(1.0, 1.0))) as world:
        server = Server(world)
        a, ports = tab(world, "a")

        async def main() -> None:
            task = a.start(post(ports, "x"))
            await world.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await world.sleep(5.0)

        world.run(main())
        return len(server.bodies)


def test_a_cancelled_request_may_be_processed_or_not() -> None:
    assert 5 < sum(processed_after_cancelling(seed) for seed in range(40)) < 35
