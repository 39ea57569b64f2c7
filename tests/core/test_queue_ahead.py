"""The batch behind the one that is on its way is claimed already; what is due is spread over free lanes."""

from __future__ import annotations

from collections import defaultdict

import pytest
from queue_kit import URL, applied, opened, put, simulated

from kit import Member, join
from tabhelm.ports import HttpAnswer
from tabhelm.queue import Queue
from tabhelm.simulated import SimulatedReceiver, World
from tabhelm.simulated.http import HttpRequest


async def in_flight(member: Member, queue: Queue) -> int:
    return (await member.agent.start(queue.stats())).in_flight


async def filled(world: World, member: Member, partitions: int, each: int = 3) -> Queue:
    queue = opened(member, flush=False)
    for n in range(partitions * each):
        await put(member, queue, n, partition=f"p{n // each}")
    return queue


@simulated
async def test_the_next_batch_is_claimed_while_one_is_on_its_way_and_sent_after_it(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = await filled(world, a, 4)
    world.faults.http_delay = (5.0, 5.0)
    opened(a, endpoint=URL, batch=3)
    await world.until(lambda: len(world.network.requests) == 2)  # the barrier, and the first batch
    await world.sleep(2.0)
    assert len(world.network.requests) == 2
    assert await in_flight(a, queue) == 6
    await world.until(lambda: len(receiver.accepted) == 12)
    assert applied(receiver) == list(range(12))
    assert not receiver.refused


@pytest.mark.parametrize("status", [503, 401])
def test_what_was_claimed_ahead_goes_back_when_nothing_may_be_sent(status: int) -> None:
    @simulated
    async def test(world: World) -> None:
        receiver = SimulatedReceiver(world, URL)
        refusing = True

        async def handle(request: HttpRequest) -> HttpAnswer:
            if refusing and "op_id" in (request.body or ""):
                return HttpAnswer(status, {"retry-after": "600"}, "")
            return await receiver.handle(request)

        world.network.route(URL, handle)
        a = join(world, "a")
        queue = await filled(world, a, 4)
        world.faults.http_delay = (0.5, 0.5)
        opened(a, endpoint=URL, batch=3)
        await world.until(lambda: len(world.network.requests) == 2)
        await world.sleep(5.0)
        assert len(world.network.requests) == 2
        assert await in_flight(a, queue) == 0
        refusing = False
        a.call(queue.resume)
        await world.until(lambda: len(receiver.accepted) == 12, within=700.0)
        for partition in range(4):  # their turn has moved on, their order has not
            numbers = [n for n in applied(receiver) if n // 3 == partition]
            assert numbers == [3 * partition, 3 * partition + 1, 3 * partition + 2]

    test()


@simulated
async def test_a_partition_is_never_claimed_ahead_of_itself(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = await filled(world, a, 1, each=9)
    world.faults.http_delay = (5.0, 5.0)
    opened(a, endpoint=URL, batch=3)
    await world.until(lambda: len(world.network.requests) == 2)
    await world.sleep(2.0)
    assert await in_flight(a, queue) == 3
    await world.until(lambda: len(receiver.accepted) == 9)
    assert applied(receiver) == list(range(9))


@simulated
async def test_a_leader_that_dies_with_a_batch_claimed_ahead_leaves_it_to_the_next(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    await filled(world, a, 4)
    world.faults.http_delay = (5.0, 5.0)
    opened(a, endpoint=URL, batch=3)
    await world.until(lambda: len(world.network.requests) == 2)
    await world.sleep(1.0)
    a.agent.die()
    b = join(world, "b")
    queue = opened(b, endpoint=URL, batch=3)
    await world.until(lambda: len(receiver.accepted) == 12, within=200.0)
    assert sorted(applied(receiver)) == list(range(12))
    await world.sleep(10.0)
    assert await in_flight(b, queue) == 0


@simulated
async def test_a_few_operations_are_spread_over_the_lanes(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    world.faults.http_delay = (1.0, 1.0)
    a = join(world, "a")
    await filled(world, a, 6, each=2)
    opened(a, endpoint=URL, lanes=4)  # one batch would take them all
    await world.until(lambda: len(receiver.accepted) == 12)
    streams = defaultdict(list)
    for effect in receiver.accepted:
        streams[effect.token.stream].append(effect.partition)
    assert sorted(map(len, streams.values())) == [2, 2, 4, 4]
    assert sum(len(set(partitions)) for partitions in streams.values()) == 6  # none on two
