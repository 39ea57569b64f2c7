"""Lanes: several batches on their way at once, and the order of each partition whatever happens."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_kit import URL, Ledger, applied, opened, put, simulated

from kit import join
from tabhelm.queue import Operation, Outcome, Sending
from tabhelm.simulated import Faults, SimulatedReceiver, World


@simulated
async def test_lanes_send_partitions_side_by_side_each_with_its_own_stream(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    world.faults.http_delay = (1.0, 1.0)
    a = join(world, "a")
    queue = opened(a, flush=False)
    for n in range(12):
        await put(a, queue, n, partition=f"p{n % 4}")
    began = world.loop.time()
    opened(a, endpoint=URL, lanes=4, batch=3)
    await world.until(lambda: len(receiver.accepted) == 12)
    assert world.loop.time() - began < 7.0  # the barrier's two seconds, and two for all four batches
    streams = defaultdict(set)
    for effect in receiver.accepted:
        streams[effect.token.stream].add(effect.partition)
    assert sorted(streams) == ["lane-0", "lane-1", "lane-2", "lane-3"]
    assert not receiver.refused


@simulated
async def test_one_partition_is_on_one_lane_at_a_time(world: World) -> None:
    a = join(world, "a")
    on_its_way: list[str] = []
    both: list[str] = []
    most = 0

    def decide(operation: Operation, sending: Sending) -> Any:
        async def send() -> None:
            nonlocal most
            if operation.partition in on_its_way:
                both.append(operation.op_id)
            on_its_way.append(operation.partition)
            most = max(most, len(on_its_way))
            await a.ports.clock.sleep(0.5)
            on_its_way.remove(operation.partition)

        return send()

    ledger = Ledger(decide)
    queue = opened(a, flush=False)
    for n in range(30):
        await put(a, queue, n, partition="ab"[n % 10 == 0])
    opened(a, sender=ledger, lanes=8, batch=2)
    await world.until(lambda: len(ledger.sent) == 30, within=60.0)
    assert both == [] and most == 2


@simulated
async def test_lanes_that_are_refused_together_go_on_above_one_high_water(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = opened(a, endpoint=URL, lanes=4, batch=1)
    await world.until(lambda: bool(receiver.tokens))
    token = receiver.tokens[0]
    # The receiver has seen more than our storage remembers: a restored backup, for instance.
    receiver.guard.judge("user", type(token)(token.domain, token.resource, 7, "lane-0", 1, "somebody"))
    world.faults.http_delay = (0.5, 0.5)
    for n in range(8):
        await put(a, queue, n, partition=f"p{n}")
    await world.until(lambda: len(receiver.accepted) == 8)
    assert {effect.token.epoch for effect in receiver.accepted} == {8}
    assert a.leading


@simulated
async def test_when_leadership_ends_all_lanes_stop_and_the_next_leader_sends_the_rest(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    world.faults.http_delay = (0.2, 0.4)
    a, b = join(world, "a"), join(world, "b")
    queue = opened(a, endpoint=URL, lanes=4, batch=2)
    await world.until(lambda: a.leading)
    for n in range(40):
        await put(a, queue, n, partition=f"p{n % 8}")
    await world.until(lambda: len(receiver.accepted) > 4)
    opened(b, endpoint=URL, lanes=4, batch=2)
    a.freeze()
    await world.until(lambda: len(receiver.accepted) == 40, within=60.0)
    assert sorted(applied(receiver)) == list(range(40))
    await world.sleep(2.0)  # until the last answer is here and settled
    assert (await b.agent.start(opened(b, flush=False).stats())).in_flight == 0


class Walk:
    """Tabs that come and die while a queue is filled and emptied over lanes, with answers of every kind."""

    def __init__(self, seed: int, lanes: int, batch: int, crashes: int) -> None:
        self.rng = random.Random(f"walk {seed}")
        self.world = World(seed, faults=Faults(http_delay=(0.001, 0.3), commit_delay=(0.0, 0.05)))
        self.receiver = SimulatedReceiver(self.world, URL, apply=self.answer)
        self.options: dict[str, Any] = {"lanes": lanes, "batch": batch, "endpoint": URL, "base_delay": 0.1}
        self.options |= {"max_delay": 1.0, "max_attempts": 30}
        self.crashes = crashes
        self.calm = False
        self.rejected: set[str] = set()

    def answer(self, operation: dict[str, Any]) -> Any:
        if self.calm:
            return "committed"
        answer = self.rng.choices(["committed", "retry", "rejected"], [6, 2, 1])[0]
        if answer == "rejected":
            self.rejected.add(operation["op_id"])
        return answer

    async def play(self) -> None:
        world, asked = self.world, defaultdict(list)
        member = join(world, "m0")
        queue = opened(member, **self.options)
        crashes = sorted(self.rng.sample(range(5, 60), self.crashes))
        for n in range(60):
            if n in crashes:
                member.agent.die()
                member = join(world, f"m{n}")
                queue = opened(member, **self.options)
            partition = self.rng.choice("abcdef")
            world.faults.http_lose_answer = self.rng.choice([0.0, 0.0, 0.3])
            await put(member, queue, n, partition=partition)
            asked[partition].append(n)
            await world.sleep(self.rng.choice([0.0, 0.0, 0.05, 0.5]))
        world.faults.http_lose_answer = 0.0
        self.calm = True
        for _ in range(300):
            stats = await member.agent.start(queue.stats())
            if not stats.queued + stats.in_flight:
                break
            await world.sleep(1.0)
        done = applied(self.receiver)
        assert len(done) == len(set(done))
        dead = {int(letter.op_id[3:]) for letter in await member.agent.start(queue.dead_letters())}
        assert dead == {int(op_id[3:]) for op_id in self.rejected} - set(done)
        for partition, numbers in asked.items():
            sent = [effect.payload["n"] for effect in self.receiver.accepted if effect.partition == partition]
            assert sent == [n for n in numbers if n not in dead]
        totals = (stats.queued, stats.in_flight, stats.dead, stats.blocked)
        assert totals == (0, 0, len(dead), 0) and stats.done == len(done)
        assert stats.bytes == sum(len(f'{{"n":{n}}}') for n in dead)
        assert world.storage.dump("tabhelm:app")["claims"] == []


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    lanes=st.integers(1, 5),
    batch=st.sampled_from([1, 2, 3, 10]),
    crashes=st.integers(0, 3),
)
def test_the_order_of_each_partition_is_kept_over_lanes_whatever_is_answered_and_whoever_dies(
    seed: int, lanes: int, batch: int, crashes: int
) -> None:
    walk = Walk(seed, lanes, batch, crashes)
    with walk.world as world:
        world.run(walk.play())


@pytest.mark.parametrize("lanes", [1, 4])
def test_one_by_one_over_lanes_keeps_the_order_too(lanes: int) -> None:
    with World(3) as world:

        async def main() -> None:
            rng = random.Random(5)
            a = join(world, "a")
            done: dict[str, list[int]] = defaultdict(list)

            def decide(operation: Operation, sending: Sending) -> Any:
                what = rng.choices(["committed", "retry", "raise", "skipped"], [6, 1, 1, 1])[0]
                if what == "raise":
                    raise RuntimeError("down")
                if what == "committed":
                    done[operation.partition].append(operation.content["n"])
                return Outcome.retry() if what == "retry" else what

            queue = opened(a, flush=False)
            for n in range(80):
                await put(a, queue, n, partition=f"p{n % 5}")
            opened(a, sender=Ledger(decide), lanes=lanes, base_delay=0.05, max_delay=0.5)
            await world.until(lambda: sum(map(len, done.values())) == 80, within=300.0)
            for partition, numbers in done.items():
                assert numbers == [n for n in range(80) if f"p{n % 5}" == partition]

        world.run(main())
