"""The simulated event loop: virtual time, adversarial interleaving, freeze, hang, death, guards, replay."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tabhelm.simulated import (
    SimulatedLoop,
    SimulationError,
    SimulationLivelock,
    SimulationStalled,
    SimulationTimeout,
    World,
)


def test_time_leaps_and_is_exact() -> None:
    with World(1) as world:

        async def main() -> float:
            await asyncio.gather(world.sleep(3600.0), world.sleep(7200.0))
            return world.loop.time()

        assert world.run(main()) == 7200.0


def test_callbacks_of_one_agent_keep_their_order() -> None:
    for seed in range(20):
        with World(seed) as world:
            agents = [world.agent(name) for name in "abc"]
            seen: list[tuple[str, int]] = []
            for number in range(10):
                for agent in agents:
                    agent.post(seen.append, (agent.name, number))
            world.run(world.sleep(0.1))
            for agent in agents:
                assert [number for name, number in seen if name == agent.name] == list(range(10))


def test_seeds_interleave_agents_differently() -> None:
    orders = set()
    for seed in range(20):
        with World(seed) as world:
            seen: list[str] = []
            for _ in range(5):
                for name in "ab":
                    agent = world.agents.get(name) or world.agent(name)
                    agent.post(seen.append, name)
            world.run(world.sleep(0.1))
            orders.add("".join(seen))
    assert len(orders) > 10, f"20 seeds gave only {len(orders)} interleavings"


def test_tasks_belong_to_the_agent_that_made_them() -> None:
    with World(1) as world:
        agent = world.agent("page")

        async def child() -> str:
            await asyncio.sleep(1)
            current = SimulatedLoop.current()
            return current.name if current else "?"

        async def parent() -> list[str]:
            return await asyncio.gather(*(asyncio.ensure_future(child()) for _ in range(3)))

        assert world.run(agent.start(parent())) == ["page"] * 3


def test_a_frozen_agent_stands_still_and_its_timers_fire_once_at_the_thaw() -> None:
    with World(1) as world:
        page = world.agent("page", rate=1.0)
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                await page.clock.sleep(1.0)
                ticks.append(world.loop.time())

        async def main() -> None:
            page.start(tick())
            await world.sleep(3.5)
            before = page.clock.monotonic()
            page.freeze()
            await world.sleep(100.0)
            assert len(ticks) == 3, "a frozen agent ran"
            page.thaw()
            await world.sleep(0.5)
            assert ticks[3:] == [103.5], "the timer that fell due fires once, at the thaw"
            assert page.clock.monotonic() - before == pytest.approx(100.5), "the clock leaps over a freeze"

        world.run(main())


def test_only_events_reach_a_frozen_agent_and_nothing_a_hung_one() -> None:
    with World(1) as world:
        page = world.agent("page")
        seen: list[str] = []

        async def main() -> None:
            page.freeze()
            page.post(seen.append, "task")
            page.post_event(seen.append, "event")
            await world.sleep(1.0)
            assert seen == ["event"]
            page.thaw()
            await world.sleep(1.0)
            assert seen == ["event", "task"]
            page.hang(5.0)
            page.post_event(seen.append, "late event")
            await world.sleep(4.9)
            assert seen[2:] == []
            await world.sleep(0.2)
            assert seen[2:] == ["late event"]

        world.run(main())


def test_a_dead_agent_never_runs_again_and_says_nothing() -> None:
    ended: list[str] = []

    async def body() -> None:
        try:
            await asyncio.sleep(1)
            ended.append("body went on")
        finally:
            ended.append("finally")
            await asyncio.sleep(0)

    async def never_started() -> None:
        ended.append("started")

    async def main(world: World) -> None:
        page = world.agent("page")
        page.start(body())
        await world.sleep(0.5)
        page.start(never_started())
        page.die()
        await world.sleep(10)
        gc.collect()
        assert ended == [], "code of a dead agent ran"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with World(1) as world:
            world.run(main(world))
        gc.collect()
    assert ended == ["finally"], "disposal closes the coroutine, after the world's end only"


def test_what_is_closed_at_the_end_finds_the_worlds_own_loop() -> None:
    seen: list[asyncio.AbstractEventLoop] = []

    async def body() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            seen.append(asyncio.gather().get_loop())  # no loop running: asyncio would make one, closed by nobody

    async def main(world: World) -> None:
        world.agent("page").start(body())
        await world.sleep(0.5)

    with World(1) as world:
        world.run(main(world))
    assert seen == [world.loop]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_waiting_for_ever_is_an_error() -> None:
    with World(1) as world:
        page = world.agent("page")

        async def main() -> None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            page.freeze()
            page.post(future.set_result, None)
            await future

        with pytest.raises(SimulationStalled, match="page frozen"):
            world.run(main())


def test_running_for_ever_is_an_error() -> None:
    with World(1) as world:
        agent = world.agent("busy")

        async def spin() -> None:
            while True:
                await asyncio.sleep(0)

        agent.start(spin())
        with pytest.raises(SimulationLivelock, match="busy"):
            world.run(world.sleep(1.0))


def test_virtual_time_has_a_limit() -> None:
    with World(1) as world, pytest.raises(SimulationTimeout):
        world.run(world.sleep(100.0), limit=10.0)


def test_unhandled_failures_are_raised_at_the_end() -> None:
    world = World(1)
    agent = world.agent("page")

    async def fail() -> None:
        raise ValueError("nobody looks at me")

    agent.start(fail())
    agent.post(lambda: 1 / 0)
    world.run(world.sleep(1.0))
    with pytest.raises(SimulationError, match=r"(?s)ZeroDivisionError.*nobody looks at me"):
        world.close()


def test_clocks_differ_in_offset_and_speed() -> None:
    with World(1) as world:
        fast, slow = world.agent("fast", offset=5.0, rate=2.0), world.agent("slow", offset=0.0, rate=0.5)

        async def main() -> tuple[float, float]:
            await fast.clock.sleep(10.0)
            assert world.loop.time() == 5.0
            fast.clock.wall_offset = -1000.0
            assert slow.clock.wall() - fast.clock.wall() == 1000.0
            return fast.clock.monotonic(), slow.clock.monotonic()

        assert world.run(main()) == (15.0, 2.5)


def test_a_throttled_clock_ticks_once_a_second() -> None:
    with World(1) as world:
        page = world.agent("page")
        page.clock.throttled = True

        async def main() -> int:
            count = 0
            while world.loop.time() < 10:
                await page.clock.sleep(0.05)
                count += 1
            return count

        assert world.run(page.start(main())) == 10


HISTORY = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from tabhelm.simulated import World
from tabhelm.ports import Schema, Store
with World(int(sys.argv[2])) as world:
    async def tab(agent, ports):
        channel = ports.channels.open("c")
        channel.subscribe(lambda text: world.note(agent.name, f"got {text}"))
        database = ports.databases.database("d", Schema(1, (Store("s", "id"),)))
        async def body(tx):
            old = await tx.get("s", 1)
            await tx.put("s", {"id": 1, "n": (old or {"n": 0})["n"] + 1})
        for number in range(5):
            lock = await ports.locks.acquire("l")
            channel.post(f"{agent.name}{number}")
            await ports.clock.sleep(ports.entropy.uniform(0, 0.01))
            await database.transaction(["s"], "readwrite", body)
            lock.release()
    async def main():
        agents = [world.agent(f"t{number}") for number in range(6)]
        tasks = [agent.start(tab(agent, world.ports(agent))) for agent in agents]
        await world.sleep(0.03)
        agents[0].die()
        agents[1].freeze()
        await world.sleep(1.0)
        agents[1].thaw()
        await asyncio.gather(*tasks[1:])
    world.run(main())
    print(world.loop.digest, world.loop.steps)
    print("\\n".join(world.trace))
"""


def test_the_same_seed_gives_the_same_history_whatever_the_hash_seed() -> None:
    source = str(Path(__file__).resolve().parents[2] / "py_src")

    def history(seed: int, hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", HISTORY, source, str(seed)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    first = history(7, "1")
    assert "granted l" in first and "committed readwrite s" in first and "got t" in first
    assert history(7, "2") == first
    assert history(8, "1") != first
