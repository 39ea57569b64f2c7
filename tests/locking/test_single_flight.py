"""Single flight between tabs with engines of their own: one does it, all get it; who dies, freezes or fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from lock_kit import SEEDS, members, play, run
from tests.core.kit import APP, Member

from tabhelm.errors import (
    FlightFailed,
    InvalidName,
    LockLost,
    LockReentered,
    LockTimeout,
    LockUnavailable,
    NotCloneable,
    NotJoined,
)
from tabhelm.locking import MAX_RESULT
from tabhelm.messages import FlightEnd, encode
from tabhelm.names import channel_name
from tabhelm.simulated import World
from tabhelm.simulated.locks import SimulatedLocks

NAME = f"{APP}:v1:single-flight:catalog"


class Work:
    """What is done once for all. ``runs``: who did it."""

    def __init__(self, result: Any = None, *, seconds: float = 1.0, error: Exception | None = None) -> None:
        self.runs: list[str] = []
        self.result = result
        self.seconds = seconds
        self.error = error
        self.at_once = 0
        self.most = 0

    def by(self, member: Member, **options: Any) -> asyncio.Task[Any]:
        async def work() -> Any:
            self.runs.append(member.agent.name)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            try:
                await member.ports.clock.sleep(self.seconds)
            finally:
                self.at_once -= 1
            if self.error is not None:
                raise self.error
            return {"from": member.agent.name} if self.result is None else self.result

        async def ask() -> Any:
            return await member.tab.single_flight("catalog", work, **options)

        return member.agent.start(ask())


def idle(world: World) -> bool:
    snapshot = world.lock_manager.snapshot()
    return not [info for info in (*snapshot.held, *snapshot.pending) if info.name.startswith(NAME)]


@pytest.mark.parametrize("seed", range(20))
def test_one_tab_does_it_and_all_get_the_same(seed: int) -> None:
    async def main(world: World) -> None:
        crew = await members(world, "a", "b", "c", "d")
        work = Work()
        tasks = [work.by(member) for member in crew for _ in range(3)]
        answers = [await task for task in tasks]
        assert len(work.runs) == 1
        assert answers == [{"from": work.runs[0]}] * 12
        await world.until(lambda: idle(world), within=1.0)
        again = Work("new")
        assert await again.by(crew[2]) == "new" and again.runs == ["c"]
        await world.until(lambda: idle(world), within=1.0)

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_callers_that_come_while_it_runs_join_it(seed: int) -> None:
    async def main(world: World) -> None:
        a, b, c = await members(world, "a", "b", "c")
        work = Work(seconds=2.0)
        first = work.by(a)
        await world.until(lambda: work.runs == ["a"])
        others = []
        for member in (b, c, a, b):
            others.append(work.by(member))
            await world.sleep(0.3)
        assert [await task for task in (first, *others)] == [{"from": "a"}] * 5
        assert work.runs == ["a"]
        own, same = first.result(), others[2].result()
        assert own is same, "callers in one tab share one object"

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_error_of_who_did_it_reaches_all(seed: int) -> None:
    async def main(world: World) -> None:
        a, b, c = await members(world, "a", "b", "c")
        mine = ConnectionError("no route to catalog")
        work = Work(error=mine)
        first = work.by(a)
        await world.until(lambda: work.runs == ["a"])
        twin, *others = work.by(a), work.by(b), work.by(c)
        for own in (first, twin):
            with pytest.raises(ConnectionError) as caught:
                await own
            assert caught.value is mine
        for other in others:
            with pytest.raises(FlightFailed, match="ConnectionError: no route to catalog") as failed:
                await other
            assert (failed.value.kind, failed.value.reason) == ("ConnectionError", "no route to catalog")
        assert work.runs == ["a"]

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("end", ["die", "freeze", "leave", "cancel"])
def test_when_the_tab_that_does_it_is_lost_another_does_it(seed: int, end: str) -> None:
    async def main(world: World) -> None:
        a, b, c = await members(world, "a", "b", "c", in_page=True)
        work = Work(seconds=2.0)
        first = work.by(a)
        await world.until(lambda: work.runs == ["a"])
        others = [work.by(b), work.by(c)]
        await world.sleep(1.0)
        began = world.loop.time()
        if end == "die":
            a.agent.die()
        elif end == "freeze":
            a.freeze()
        elif end == "leave":
            await run(a, lambda: a.tab.leave("logout"))
        else:
            a.call(first.cancel)
        answers = [await task for task in others]
        assert answers[0] == answers[1] and answers[0]["from"] in ("b", "c") and len(work.runs) == 2
        assert world.loop.time() - began < 2.8, "the wait for a message of the dead is short"
        if end == "freeze":
            await world.sleep(5.0)
            a.thaw()
            with pytest.raises(LockLost, match="frozen"):
                await first
        elif end == "leave":
            with pytest.raises(LockLost, match="logout"):
                await first
        await world.until(lambda: idle(world), within=1.0)

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_caller_that_waits_is_withdrawn_and_gets_it_after_the_thaw(seed: int) -> None:
    async def main(world: World) -> None:
        a, b, c = await members(world, "a", "b", "c", in_page=True)
        work = Work(seconds=2.0)
        work.by(a)
        await world.until(lambda: work.runs == ["a"])
        frozen = work.by(b)
        await world.sleep(0.5)
        b.freeze()
        await world.sleep(0.5)
        assert [info.client_id for info in world.lock_manager.snapshot().pending if info.name == NAME] == []
        waits = work.by(c)
        assert await waits == {"from": "a"}
        b.thaw()
        answer = await frozen
        assert answer["from"] in ("a", "b") and work.most == 1
        await world.until(lambda: idle(world), within=1.0)

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_engines_that_do_not_know_of_each_other_yet_share_it_all_the_same(seed: int) -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        for member in (a, b):
            member.services.locks.others = lambda: False
        work = Work()
        first = work.by(a)
        await world.until(lambda: work.runs == ["a"])
        other = work.by(b)
        assert await first == await other == {"from": "a"} and work.runs == ["a"]

    play(main, seed=seed)


def test_without_other_engines_nobody_lingers() -> None:
    async def main(world: World) -> None:
        (a,) = await members(world, "a")
        work = Work(seconds=1.0)
        began = world.loop.time()
        assert await work.by(a) == {"from": "a"}
        assert world.loop.time() - began < 1.05

    play(main, seed=1)


def test_who_gives_up_stops_the_work_only_when_nobody_else_waits() -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        work = Work(seconds=3.0)
        first, second = work.by(a), work.by(a, timeout=1.0)
        await world.until(lambda: work.runs == ["a"])
        other = work.by(b, timeout=0.5)
        with pytest.raises(LockTimeout, match="single flight 'catalog' gave nothing within 0.5 s"):
            await other
        with pytest.raises(LockTimeout):
            await second
        assert work.at_once == 1
        a.call(first.cancel)
        with pytest.raises(asyncio.CancelledError):
            await first
        await world.until(lambda: work.at_once == 0 and idle(world), within=1.0)
        assert await work.by(a) == {"from": "a"}

    play(main, seed=2)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"at": [1, {"when": {1}}]}, r"result.at\[1\].when is of type set"),
        ({"a b": float("nan")}, r'result\["a b"\] is nan'),
        ({1: "x"}, "result has the key 1 of type int"),
        ("\ud800", "half a character"),
        ("x" * (MAX_RESULT - 1), "200,005 characters long"),
        ("ä" * (MAX_RESULT // 6), "characters long"),
    ],
    ids=["set", "nan", "key", "surrogate", "long", "escaped"],
)
def test_what_cannot_go_to_other_tabs_is_refused_by_its_place(result: Any, why: str) -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        work = Work(result)
        first = work.by(a)
        await world.until(lambda: work.runs == ["a"])
        other = work.by(b)
        with pytest.raises(NotCloneable, match=why):
            await first
        with pytest.raises(FlightFailed, match=why) as failed:
            await other
        assert failed.value.origin == "not-cloneable"

    play(main, seed=3)


def test_the_largest_result_crosses() -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        text = "x" * (MAX_RESULT - 6)
        work = Work(text)
        first = work.by(a)
        await world.until(lambda: work.runs == ["a"])
        other = work.by(b)
        assert await first == text and await other == text and work.runs == ["a"]
        assert len(encode(FlightEnd("e" * 512, "n" * 512, json.dumps(text), "", "", ""))) < 262_144

    play(main, seed=4)


def test_what_strangers_say_is_ignored_and_counted() -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        work = Work(seconds=1.0)
        first = work.by(a)
        await world.until(lambda: work.runs == ["a"])
        other = work.by(b)
        await world.sleep(0.3)
        channel = world.ports(world.agent("stranger")).channels.open(channel_name(APP, 1))
        good = json.loads(encode(FlightEnd("e-x", NAME, '"forged"', "", "", "")))
        wrong: list[dict[str, Any]] = [{"value": 7}, {"value": "{"}, {"value": "[" * 600 + "]" * 600}, {"error": None}]
        for change in [*wrong, {"name": 3}, {"name": "x" * 600}, {"reason": None}, {"sender": ""}]:
            channel.post(json.dumps({**good, **change}))
        channel.post(json.dumps({**good, "name": "app:v1:single-flight:other"}))
        channel.post(json.dumps({**good, "sender": "e-b"}))  # our own name in somebody else's mouth
        assert await first == await other == {"from": "a"}
        assert b.services.events.ignored_counts == {"malformed": 8}

    play(main, seed=5)


def test_names_and_leaving() -> None:
    async def main(world: World) -> None:
        (a,) = await members(world, "a")

        async def nothing() -> None:
            return None

        for key, scope in (("no name", None), ("x", ":")):
            with pytest.raises(InvalidName):
                await run(a, lambda key=key, scope=scope: a.tab.single_flight(key, nothing, scope=scope))  # type: ignore[misc]
        with pytest.raises(ValueError, match="timeout"):
            await run(a, lambda: a.tab.single_flight("x", nothing, timeout=0.0))
        assert await run(a, lambda: a.tab.single_flight("x", nothing, scope="user:1")) is None
        await run(a, lambda: a.tab.leave("left"))
        with pytest.raises(NotJoined):
            await run(a, lambda: a.tab.single_flight("x", nothing))

    play(main, seed=6)


def test_a_flight_inside_its_own_work_is_refused_at_once() -> None:
    async def main(world: World) -> None:
        (a,) = await members(world, "a")

        async def inner() -> int:
            return 1

        async def outer() -> int:
            return await a.tab.single_flight("x", inner)

        began = world.loop.time()
        with pytest.raises(LockReentered, match="single flight 'x'"):
            await run(a, lambda: a.tab.single_flight("x", outer))
        assert world.loop.time() - began < 1.0

        async def body() -> None:
            async with a.tab.lock("x"), a.tab.lock("y"):
                assert await a.tab.single_flight("z", inner) == 1
                with pytest.raises(LockUnavailable):
                    async with a.tab.lock("x", if_available=True):
                        raise AssertionError("held twice")

        await run(a, body)

    play(main, seed=7)


def test_a_second_task_of_its_own_work_that_asks_is_ended_by_its_timeout() -> None:
    """That one cannot be told from a caller beside it."""

    async def main(world: World) -> None:
        (a,) = await members(world, "a")

        async def inner() -> int:
            return 1

        async def outer() -> int:
            return await asyncio.create_task(a.tab.single_flight("x", inner, timeout=1.0))

        with pytest.raises(LockTimeout):
            await run(a, lambda: a.tab.single_flight("x", outer))

    play(main, seed=7)


def test_who_asks_shortly_before_it_is_done_gets_the_same() -> None:
    """The browser said that somebody holds the lock, and on its way that word was overtaken by the result."""
    refused: list[int] = []

    async def main(world: World, seed: int) -> None:
        a, b = await members(world, "a", "b")
        locks = b.ports.locks
        assert isinstance(locks, SimulatedLocks)
        told = locks.unavailable
        locks.unavailable = lambda request: (refused.append(seed), told(request))[1]  # type: ignore[method-assign]
        done = asyncio.Event()
        ran: list[str] = []

        async def work() -> str:
            ran.append("a")
            await done.wait()
            return "a"

        async def again() -> str:
            ran.append("b")
            return "b"

        first = run(a, lambda: a.tab.single_flight("catalog", work))
        await world.until(lambda: ran == ["a"])
        await world.sleep(1.0)
        other = run(b, lambda: b.tab.single_flight("catalog", again))
        await world.sleep(seed * 0.0002)
        a.call(done.set)
        assert await first == "a"
        answer = await other
        assert answer == "a" or seed not in refused, "who was not refused the lock came when it was free again"
        assert ran == (["a"] if answer == "a" else ["a", "b"])
        await world.until(lambda: idle(world), within=2.0)

    for seed in range(60):
        play(lambda world, seed=seed: main(world, seed), seed=seed)  # type: ignore[misc]
    assert len(refused) > 20


@pytest.mark.parametrize("seed", SEEDS)
def test_what_an_earlier_flight_gave_is_no_answer_to_who_asks_during_the_next(seed: int) -> None:
    """Its message is late, and comes before the browser says that the lock is taken, by the next flight."""

    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        work = Work(seconds=3.0)
        first = work.by(a)
        await world.until(lambda: work.runs == ["a"])
        world.faults.lock_delay = (0.05, 0.06)
        late = FlightEnd("e-x", NAME, '"of an earlier flight"', "", "", "")

        async def ask() -> Any:
            task = asyncio.create_task(b.tab.single_flight("catalog", first_again))
            await b.ports.clock.sleep(0.02)  # it has asked, and is not answered yet
            b.services.flights.heard(late)
            return await task

        async def first_again() -> str:
            work.runs.append("b")
            return "b"

        assert await b.agent.start(ask()) == await first == {"from": "a"} and work.runs == ["a"]

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_asks_for_a_flight_that_was_lost_but_goes_on_begins_anew(seed: int) -> None:
    """A page that thawed: its old work ignores that it was lost, and nobody new shall wait for that."""

    async def main(world: World) -> None:
        (a,) = await members(world, "a", in_page=True)
        go = asyncio.Event()
        begun: list[int] = []

        async def deaf() -> str:
            begun.append(1)
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue
            return "old"

        async def new() -> str:
            return "new"

        old = run(a, lambda: a.tab.single_flight("catalog", deaf))
        await world.until(lambda: bool(begun))
        a.freeze()
        await world.sleep(1.0)
        a.thaw()
        await world.sleep(1.0)
        fresh = run(a, lambda: a.tab.single_flight("catalog", new))
        await world.until(fresh.done, within=2.0)
        assert fresh.result() == "new" and not old.done()
        a.call(go.set)
        with pytest.raises(LockLost, match="frozen"):
            await old
        await world.until(lambda: idle(world), within=1.0)

    play(main, seed=seed)
