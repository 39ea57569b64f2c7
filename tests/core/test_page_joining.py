"""A page that runs its own engine: how it joins and leaves, what it says when it cannot, who it is."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
from page_kit import SEEDS, held_by, led_by, lets_go, open_page, run

import tabhelm
from kit import APP
from tabhelm import LeaderContext, LeadershipPolicy, Leading, Stopped
from tabhelm.errors import InvalidName, InvalidPolicy, NotInBrowser, NotJoined
from tabhelm.leadership import BackingOff
from tabhelm.names import tab_lock
from tabhelm.observe import LoopFailed
from tabhelm.simulated import World


@pytest.mark.parametrize("seed", SEEDS)
def test_a_joined_page_leads_and_leaves_nothing_behind(seed: int) -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")

        async def work() -> None:
            async with page.joining(version="1", capabilities={"x"}) as tab:
                assert tab.tab_id == page.memory.stored["tab"][0]
                election = tab.lead("r", waits, policy=LeadershipPolicy(requires={"x"}))  # type: ignore[arg-type]
                state = await election.wait_for(Leading)
                assert isinstance(state, Leading) and state.epoch == 1
                presence = tab.presence()
                assert presence.own.version == "1" and presence.leaders["r"].tab_id == tab.tab_id
            assert isinstance(election.status, Stopped)

        async def waits(context: LeaderContext) -> None:
            await context.sleep(1000)

        await page.agent.start(work())
        await world.sleep(1.0)
        assert held_by(world, page.agent) == []
        assert not page.lifecycle.listened_to
        assert all(task.done() for task in page.agent.tasks)

    run(seed, test)


def test_the_block_s_exception_propagates_and_says_why_the_tab_left() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        left: list[str] = []

        async def work() -> None:
            async with page.joining() as tab:
                tab.events.subscribe(lambda event: left.append(getattr(event, "reason", "")))
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await page.agent.start(work())
        assert left[-1] == "failed"
        await lets_go(world, page)

    run(1, test)


@pytest.mark.parametrize("seed", SEEDS)
def test_cancelling_at_any_moment_leaves_nothing_behind(seed: int) -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")

        async def work() -> None:
            async with page.joining() as tab:
                tab.lead("r", forever)
                await page.ports.clock.sleep(1000)

        async def forever(context: LeaderContext) -> None:
            await context.sleep(1000)

        for steps in range(40):
            task = page.agent.start(work())
            for _ in range(steps):
                await world.sleep(0.002)
            task.cancel()
            await world.until(task.done)
            assert task.cancelled()
            await world.sleep(0.5)
            assert held_by(world, page.agent) == [], f"cancelled after {steps} steps"
            assert not page.lifecycle.listened_to

    run(seed, test)


def test_cancelling_twice_while_it_leaves_does_not_stop_the_leaving() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join()

        async def stubborn(context: LeaderContext) -> None:
            try:
                await context.sleep(1000)
            finally:
                await page.ports.clock.sleep(2.0)

        await led_by(world, page.lead(tab, loop=stubborn))
        leaving = page.agent.start(tab.leave())
        await world.sleep(0.1)
        leaving.cancel()
        await world.until(leaving.done)
        assert held_by(world, page.agent), "the loop still has its grace"
        await page.agent.start(tab.leave("again"))
        await lets_go(world, page)
        with pytest.raises(NotJoined):
            page.lead(tab, "other")

    run(1, test)


def test_a_loop_may_leave_its_own_tab() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join()

        async def leaves(context: LeaderContext) -> None:
            await tab.leave("enough")

        election = page.lead(tab, loop=leaves)
        await world.until(lambda: isinstance(election.status, Stopped), within=1.0)
        await world.until(lambda: held_by(world, page.agent) == [], within=1.0)

    run(1, test)


def test_a_failing_loop_is_logged_with_its_traceback_and_stands_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join()
        calls: list[int] = []

        async def fails(context: LeaderContext) -> None:
            calls.append(context.epoch or 0)
            if len(calls) == 1:
                raise LookupError("a case that does not exist")
            await context.sleep(1000)

        page.lead(tab, loop=fails)
        await world.until(lambda: len(calls) == 2)
        assert LoopFailed(f"{APP}:r", "LookupError: a case that does not exist") in tab.events.recent

    with caplog.at_level(logging.ERROR, "tabhelm"):
        run(1, test)
    assert "LookupError: a case that does not exist" in caplog.text and "fails" in caplog.text


def test_a_loop_that_is_no_async_function_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join()
        election = page.lead(tab, loop=lambda context: context.epoch)
        await world.until(lambda: isinstance(election.status, BackingOff) and election.status.reason == "loop-failed")

    with caplog.at_level(logging.ERROR, "tabhelm"):
        run(1, test)
    assert "write `async def` before it" in caplog.text


def test_a_loop_that_surely_is_no_async_function_is_refused_at_once() -> None:
    class Loops:
        def method(self, context: LeaderContext) -> None:
            context.progress()

        async def fine(self, context: LeaderContext) -> None:
            await context.sleep(1000)

    def forever(context: LeaderContext) -> None:
        while True:
            context.progress()

    def early(context: LeaderContext) -> None:
        if context.epoch:
            return
        print(context)

    def generator(context: LeaderContext) -> Any:
        yield

    async def stream(context: LeaderContext) -> Any:
        yield

    def queued(context: LeaderContext, queue: Any) -> None:
        return None

    def hands_on(context: LeaderContext) -> Any:
        return Loops().fine(context) if context.epoch else None

    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join()
        queue = page.call(lambda: tab.queue("q"))
        for loop in (forever, early, generator, stream, Loops().method, lambda context: None, "loop"):
            for resource, name in (("r", "r"), (queue, "q")):
                with pytest.raises(TypeError, match=f"leader loop of '{name}' is no async function: write `async def`"):
                    page.lead(tab, resource, loop)
        with pytest.raises(TypeError, match="leader loop of 'other' is no async function"):
            page.call(lambda: tab.queue("other", loop=queued))  # type: ignore[arg-type]
        assert not tab._tab.elections
        unsure = (hands_on, lambda context: hands_on(context), partial(hands_on), Loops().fine)
        for number, given in enumerate(unsure):
            await led_by(world, page.lead(tab, f"r{number}", given))

    run(1, test)


def test_what_belongs_into_the_policy_is_shown_the_way() -> None:
    async def waits(context: LeaderContext) -> None:
        await context.sleep(1000)

    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join()
        for lead in (tab.lead, tab._tab.lead):
            for given, says in (
                ("visible", r"lead\(\) takes no 'visible': say policy=LeadershipPolicy\(visible=\.\.\.\)"),
                ("maxHold", r"lead\(\) takes no 'maxHold': say policy=LeadershipPolicy\(max_hold=\.\.\.\)"),
                ("colour", r"lead\(\) got an unexpected keyword argument 'colour'"),
            ):
                with pytest.raises(TypeError, match=says):
                    page.call(lambda lead=lead, given=given: lead("r", waits, **{given: "prefer"}))
        assert not tab._tab.elections

    run(1, test)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"app": "a b"}, InvalidName, "app 'a b'"),
        ({"app": "a", "protocol": 0}, InvalidName, "protocol 0"),
        ({"app": "a", "capabilities": "flush"}, InvalidName, "capabilities 'flush'"),
        ({"app": "a", "user_session": "a b"}, InvalidName, "scope 'a b'"),
        ({"app": "a", "stall_after": 0.1}, InvalidPolicy, "stall_after 0.1"),
        ({"app": "a"}, NotInBrowser, "tabhelm.server"),
    ],
)
def test_what_join_cannot_do_it_says_at_once(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        tabhelm.join(**options)


def test_every_public_name_is_there_and_an_unknown_one_is_not() -> None:
    for name in tabhelm.__all__:
        assert getattr(tabhelm, name) is not None
    assert set(tabhelm.__all__) <= set(dir(tabhelm))
    with pytest.raises(AttributeError, match="no_such_name"):
        tabhelm.no_such_name  # noqa: B018


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reload_is_the_same_tab_a_duplicate_and_a_second_join_are_others(seed: int) -> None:
    async def test(world: World) -> None:
        stored: dict[str, tuple[str, int]] = {}
        first = open_page(world, "first", stored)
        tab = await first.join()
        assert tab.generation == 1
        copy = open_page(world, "copy", dict(stored))
        duplicate = await copy.join()
        assert duplicate.tab_id != tab.tab_id and duplicate.generation == 1
        second = await first.join()
        assert second.tab_id != tab.tab_id
        assert stored["tab"] == (tab.tab_id, 1), "the tab keeps its first join's id"
        first.lifecycle.close_page()
        again = await open_page(world, "again", stored).join()
        assert (again.tab_id, again.generation) == (tab.tab_id, 2)
        assert again.connection_id != tab.connection_id
        await copy.agent.start(duplicate.leave())
        rejoined = await copy.join()
        assert (rejoined.tab_id, rejoined.generation) == (duplicate.tab_id, 2), "who left may come again"
        for joined in (rejoined, again):
            lock = tab_lock(APP, 1, joined.tab_id)
            assert len([held for held in world.lock_manager.snapshot().held if held.name == lock]) == 1

    run(seed, test)
