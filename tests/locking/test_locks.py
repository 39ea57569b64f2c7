"""Locks as such: tabs with engines of their own in a simulated browser, under several schedules each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lock_kit import NAME, SEEDS, Body, members, names, play, run
from tests.core.kit import APP, Member

from tabhelm.errors import InvalidName, LockLost, LockReentered, LockTimeout, LockUnavailable, NotJoined
from tabhelm.messages import LockAnswer, LockAsk
from tabhelm.observe import HeldLockLost, LockTimedOut
from tabhelm.simulated import World


@pytest.mark.parametrize("seed", SEEDS)
def test_one_at_a_time_first_in_first_out(seed: int) -> None:
    async def main(world: World) -> None:
        inside: list[str] = []
        a, b, c = await members(world, "a", "b", "c")
        first = Body(a, inside)
        await world.until(lambda: first.holds)
        assert first.lock is not None and first.lock.name == NAME
        second = Body(b, inside)
        await world.until(lambda: names(world) == (["a"], ["b"]))
        third = Body(c, inside)
        await world.until(lambda: names(world) == (["a"], ["b", "c"]))
        first.end()
        await world.until(lambda: second.holds)
        assert not third.holds
        second.end()
        await world.until(lambda: third.holds)
        third.end()
        await world.until(lambda: names(world) == ([], []))
        assert [body.most for body in (first, second, third)] == [1, 1, 1]
        assert [body.outcome for body in (first, second, third)] == [None, None, None]

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_many_share_and_one_excludes(seed: int) -> None:
    async def main(world: World) -> None:
        inside: list[str] = []
        a, b, c = await members(world, "a", "b", "c")
        readers = [Body(a, inside, shared=True), Body(b, inside, shared=True)]
        await world.until(lambda: all(reader.holds for reader in readers))
        assert sorted(inside) == ["a", "b"]
        writer = Body(c, inside)
        await world.until(lambda: names(world)[1] == ["c"])
        late = Body(a, inside, shared=True)
        await world.until(lambda: names(world)[1] == ["c", "a"])
        readers[0].end()
        readers[1].end()
        await world.until(lambda: writer.holds)
        assert inside == ["c"]
        writer.end()
        await world.until(lambda: late.holds)
        assert late.lock is not None and late.lock.shared
        late.end()
        await world.until(lambda: late.done)

    play(main, seed=seed)


def test_not_available_means_that_the_body_does_not_run() -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        inside: list[str] = []
        holder = Body(a, inside)
        await world.until(lambda: holder.holds)
        other = Body(b, inside, if_available=True)
        await world.until(lambda: other.done)
        assert isinstance(other.outcome, LockUnavailable)
        assert names(world) == (["a"], [])
        holder.end()
        await world.until(lambda: names(world) == ([], []))
        free = Body(b, inside, if_available=True)
        await world.until(lambda: free.holds)
        free.end()
        await world.until(lambda: free.done)
        assert free.outcome is None and other.most == 0

    play(main, seed=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_timeout_names_the_holder_and_leaves_nothing_in_the_queue(seed: int) -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        inside: list[str] = []
        holder = Body(a, inside)
        await world.until(lambda: holder.holds)
        await world.sleep(3.0)
        late = Body(b, inside, timeout=2.0)
        began = world.loop.time()
        await world.until(lambda: late.done)
        assert world.loop.time() - began == pytest.approx(2.0, abs=0.2)
        error = late.outcome
        assert isinstance(error, LockTimeout) and isinstance(error, TimeoutError)
        assert error.holder == "t-a" and error.held_for == pytest.approx(5.0, abs=0.3)
        assert "tab 't-a' has held it for 5." in str(error) and "2 s" in str(error)
        await world.until(lambda: names(world) == (["a"], []))
        timed_out = [event for event in b.services.events.recent if isinstance(event, LockTimedOut)]
        assert [(event.lock, event.holder) for event in timed_out] == [(NAME, "t-a")]
        holder.end()
        await world.until(lambda: names(world) == ([], []))

    play(main, seed=seed)


@pytest.mark.parametrize("timeout", [0.3, 0.8, 2.0, 5.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_hidden_page_whose_timers_come_together_still_learns_who_holds(seed: int, timeout: float) -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b", in_page=True)
        holder = Body(a, [])
        await world.until(lambda: holder.holds)
        b.agent.clock.throttled = True
        late = Body(b, [], timeout=timeout)
        await world.until(lambda: late.done, within=timeout + 2.1)
        assert isinstance(late.outcome, LockTimeout) and late.outcome.holder == "t-a"

    play(main, seed=seed)


def test_a_timeout_says_so_when_the_holder_is_unknown_or_this_very_tab() -> None:
    async def main(world: World) -> None:
        (a,) = await members(world, "a")
        stranger = world.ports(world.agent("stranger"))
        await stranger.locks.acquire(NAME)
        inside: list[str] = []
        late = Body(a, inside, timeout=0.5)
        await world.until(lambda: late.done)
        assert isinstance(late.outcome, LockTimeout) and late.outcome.holder is None
        assert "did not say who it is" in str(late.outcome)

        async def nested() -> None:
            async with a.tab.lock("mine"):
                inner = asyncio.get_running_loop().create_task(again())
                await inner

        async def again() -> None:
            async with a.tab.lock("mine", timeout=1.0):
                raise AssertionError("held twice")

        with pytest.raises(LockTimeout, match="this tab itself has held it.*waits for itself"):
            await run(a, nested)

    play(main, seed=2)


def test_code_that_holds_the_lock_may_not_ask_for_it_again() -> None:
    async def main(world: World) -> None:
        (a,) = await members(world, "a")

        async def nested(**options: Any) -> None:
            async with a.tab.lock("case-42"):
                async with a.tab.lock("case-42", **options):
                    raise AssertionError("held twice")

        for options in ({}, {"shared": True}, {"timeout": 5.0}):
            with pytest.raises(LockReentered, match="case-42"):
                await run(a, lambda options=options: nested(**options))  # type: ignore[misc]
        with pytest.raises(LockUnavailable):
            await run(a, lambda: nested(if_available=True))
        await world.until(lambda: names(world) == ([], []), within=0.1)

        async def side_by_side() -> None:
            async with a.tab.lock("case-42"), a.tab.lock("case-43"):
                pass
            async with a.tab.lock("case-42"):
                pass

        await run(a, side_by_side)

    play(main, seed=3)


def test_an_exception_arrives_as_itself_and_the_lock_is_free_at_once() -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        mine = KeyError("mine")

        async def fail() -> None:
            async with a.tab.lock("case-42"):
                raise mine

        with pytest.raises(KeyError) as caught:
            await run(a, fail)
        assert caught.value is mine
        taken = Body(b, [], timeout=1.0)
        await world.until(lambda: taken.holds)

    play(main, seed=4)


@pytest.mark.parametrize("seed", range(12))
def test_a_cancelled_request_is_withdrawn_at_once_and_never_granted(seed: int) -> None:
    """Also when the grant comes in the same moment as the cancellation."""

    async def main(world: World) -> None:
        a, b, c = await members(world, "a", "b", "c")
        inside: list[str] = []
        for pause in (0.0, 0.001, 0.002, 0.003, 0.005, 0.008, 0.013, 0.02):
            holder = Body(a, inside)
            await world.until(lambda holder=holder: holder.holds)  # type: ignore[misc]
            waiter = Body(b, inside)
            await world.until(lambda: names(world)[1] == ["b"])
            last = Body(c, inside)
            await world.until(lambda: names(world)[1] == ["b", "c"])
            holder.end()
            await world.sleep(pause)
            b.call(waiter.task.cancel)
            await world.until(lambda last=last: last.holds, within=1.0)  # type: ignore[misc]
            assert not waiter.holds and waiter.done and names(world) == (["c"], [])
            last.end()
            await world.until(lambda: names(world) == ([], []))
            assert inside == []

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_holder_lets_go_and_its_body_is_told_at_the_thaw(seed: int) -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b", in_page=True)
        inside: list[str] = []
        holder, waiter = Body(a, inside), None
        await world.until(lambda: holder.holds)
        waiter = Body(b, [])
        await world.until(lambda: names(world)[1] == ["b"])
        began = world.loop.time()
        a.freeze()
        await world.until(lambda: waiter.holds)
        assert world.loop.time() - began < 0.1
        assert holder.lock is not None and not holder.lock.held and not holder.done
        with pytest.raises(LockLost, match="frozen"):
            holder.lock.check()
        await world.sleep(30.0)
        a.thaw()
        await world.until(lambda: holder.done)
        assert isinstance(holder.outcome, LockLost) and holder.outcome.reason == "frozen"
        assert waiter.holds
        events = [event for event in a.services.events.recent if isinstance(event, HeldLockLost)]
        assert [(event.lock, event.tab, event.reason) for event in events] == [(NAME, "t-a", "frozen")]

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_waiter_is_withdrawn_and_asks_again_at_the_thaw(seed: int) -> None:
    async def main(world: World) -> None:
        a, b, c = await members(world, "a", "b", "c", in_page=True)
        inside: list[str] = []
        holder = Body(a, inside)
        await world.until(lambda: holder.holds)
        frozen = Body(b, inside)
        await world.until(lambda: names(world)[1] == ["b"])
        b.freeze()
        await world.until(lambda: names(world) == (["a"], []))
        alive = Body(c, inside)
        await world.until(lambda: names(world)[1] == ["c"])
        holder.end()
        await world.until(lambda: alive.holds)
        b.thaw()
        await world.until(lambda: names(world)[1] == ["b"])
        alive.end()
        await world.until(lambda: frozen.holds)
        frozen.end()
        await world.until(lambda: frozen.done)
        assert frozen.outcome is None and frozen.most == 1

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dead_holder_frees_the_lock_and_a_dead_waiter_its_place(seed: int) -> None:
    async def main(world: World) -> None:
        a, b, c = await members(world, "a", "b", "c")
        inside: list[str] = []
        first = Body(a, inside)
        await world.until(lambda: first.holds)
        second, third = Body(b, []), None
        await world.until(lambda: names(world)[1] == ["b"])
        third = Body(c, [])
        await world.until(lambda: names(world)[1] == ["b", "c"])
        b.agent.die()
        a.agent.die()
        await world.until(lambda: third.holds)
        assert not second.holds

    play(main, seed=seed)


def test_a_stolen_lock_is_lost_and_never_stolen_back() -> None:
    async def main(world: World) -> None:
        (a,) = await members(world, "a")
        body = Body(a, [])
        await world.until(lambda: body.holds)
        thief = await world.ports(world.agent("thief")).locks.acquire(NAME, steal=True)
        await world.until(lambda: body.done)
        assert isinstance(body.outcome, LockLost) and body.outcome.reason == "lock-stolen"
        await world.sleep(60.0)
        assert thief is not None and thief.held and names(world) == (["thief"], [])

    play(main, seed=5)


def test_a_body_that_ignores_its_cancellation_still_hears_that_it_lost_the_lock() -> None:
    async def main(world: World) -> None:
        (a,) = await members(world, "a")
        heard: list[str] = []

        async def stubborn() -> None:
            async with a.tab.lock("case-42") as lock:
                try:
                    await a.ports.clock.sleep(60.0)
                except asyncio.CancelledError:
                    heard.append(str(lock.lost))
                await a.ports.clock.sleep(1.0)

        async def fails() -> None:
            async with a.tab.lock("case-42"):
                try:
                    await a.ports.clock.sleep(60.0)
                except asyncio.CancelledError:
                    raise RuntimeError("own") from None

        async def outer() -> str:
            try:
                await stubborn()
            except LockLost as error:
                await a.ports.clock.sleep(0.1)  # this task is cancelled no more
                return error.reason
            return "nothing"

        thief = world.ports(world.agent("thief")).locks
        for work, expected in ((outer, "lock-stolen"), (fails, RuntimeError)):
            task = run(a, work)
            await world.until(lambda: names(world)[0] == ["a"])
            stolen = await thief.acquire(NAME, steal=True)
            if isinstance(expected, str):
                assert await task == expected
            else:
                with pytest.raises(expected, match="own"):
                    await task
            assert stolen is not None
            stolen.release()
        assert heard == ["lock-stolen"]

    play(main, seed=6)


def test_a_tab_that_leaves_holds_and_waits_for_nothing() -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        inside: list[str] = []
        holder = Body(a, inside)
        await world.until(lambda: holder.holds)
        waiter = Body(b, inside)
        await world.until(lambda: names(world)[1] == ["b"])
        await run(b, lambda: b.tab.leave("logout"))
        await world.until(lambda: waiter.done)
        assert isinstance(waiter.outcome, NotJoined) and names(world) == (["a"], [])
        await run(a, lambda: a.tab.leave("logout"))
        await world.until(lambda: holder.done)
        assert isinstance(holder.outcome, LockLost) and holder.outcome.reason == "logout"
        await world.until(lambda: names(world) == ([], []), within=0.1)
        assert a.services.locks.count == 0
        with pytest.raises(NotJoined):
            a.tab.lock("case-42")

    play(main, seed=7)


def test_names_and_options_are_checked_before_anything_is_asked_for() -> None:
    async def main(world: World) -> None:
        (a,) = await members(world, "a")
        with pytest.raises(InvalidName, match="resource 'no name'"):
            a.tab.lock("no name")
        with pytest.raises(InvalidName, match="scope"):
            a.tab.lock("x", scope="user:")
        with pytest.raises(InvalidName, match="at most 512"):
            a.tab.lock("x" * 300, scope="y" * 300)
        for timeout in (-1.0, float("nan"), float("inf"), 2.0**31):
            with pytest.raises(ValueError, match="timeout"):
                a.tab.lock("x", timeout=timeout)
        with pytest.raises(ValueError, match="if_available"):
            a.tab.lock("x", if_available=True, timeout=1.0)
        scoped = run(a, lambda: _hold(a, "case", "user:1"))
        await world.until(lambda: f"{APP}:v1:mutation:case:user:1" in world.lock_manager.held)
        scoped.cancel()

    async def _hold(member: Member, name: str, scope: str) -> None:
        async with member.tab.lock(name, scope=scope):
            await member.ports.clock.sleep(5.0)

    play(main, seed=8)


def test_answers_that_nobody_asked_for_are_dropped() -> None:
    async def main(world: World) -> None:
        a, b = await members(world, "a", "b")
        hub = a.services.locks
        number = hub.ask("app:v1:mutation:other", lambda: None)
        hub.answered(LockAnswer("e-b", "e-a", number, NAME, "t-b", 1.0, False))
        hub.answered(LockAnswer("e-b", "e-x", number, "app:v1:mutation:other", "t-b", 1.0, False))
        hub.answered(LockAnswer("e-b", "e-a", number + 1, "app:v1:mutation:other", "t-b", 1.0, False))
        assert hub.holders("app:v1:mutation:other", number) == []
        for _ in range(50):
            hub.answered(LockAnswer("e-b", "e-a", number, "app:v1:mutation:other", "t-b", 1.0, False))
        assert len(hub.holders("app:v1:mutation:other", number)) == 8
        hub.forget(number)
        assert hub.holders("app:v1:mutation:other", number) == []
        posted: list[str] = []
        hub.post = posted.append
        hub.asked(LockAsk("e-b", 1, NAME))
        assert posted == []

    play(main, seed=9)


@pytest.mark.parametrize("timeout", [0.0, 0.001])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_shortest_timeouts_get_a_free_lock_and_no_other(seed: int, timeout: float) -> None:
    async def main(world: World) -> None:
        world.faults.lock_delay = (0.002, 0.005)
        a, b = await members(world, "a", "b")
        first = Body(a, [], timeout=timeout)
        await world.until(lambda: first.holds or first.done)
        assert first.holds, first.outcome
        for member, whose in ((b, "there was no time to ask"), (a, "this tab itself has held it")):
            began = world.loop.time()
            late = Body(member, [], timeout=timeout)
            await world.until(lambda late=late: late.done)  # type: ignore[misc]
            assert isinstance(late.outcome, LockTimeout) and whose in str(late.outcome)
            assert f"within {timeout:g} s" in str(late.outcome)
            assert world.loop.time() - began < 1.0
        first.end()
        await world.until(lambda: names(world) == ([], []))

    play(main, seed=seed)
