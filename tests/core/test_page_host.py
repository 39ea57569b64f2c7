"""A page that runs its own engine: what it lets go in freeze and pagehide, how it goes on, what a standstill costs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

import tabhelm
from kit import APP
from tabhelm import JoinedTab, LeaderContext, LeadershipPolicy, Leading, Queue, Stopped
from tabhelm.errors import AlreadyStanding, InvalidName, InvalidPolicy, LeadershipLost, NotInBrowser, NotJoined
from tabhelm.host.joined import Joining
from tabhelm.host.page import JoinOptions, PageHost
from tabhelm.leadership import BackingOff, Election, Idle
from tabhelm.names import tab_lock
from tabhelm.observe import LeadershipChanged, LoopFailed
from tabhelm.ports import LockSnapshot, Ports
from tabhelm.simulated import SimulatedAgent, SimulatedReceiver, World
from tabhelm.simulated.lifecycle import SimulatedLifecycle

SEEDS = range(8)


class Memory:
    """sessionStorage, and what this one page has of it."""

    def __init__(self, stored: dict[str, tuple[str, int]]) -> None:
        self.stored = stored
        self.ours: set[str] = set()

    def read(self) -> tuple[str, int] | None:
        known = self.stored.get("tab")
        return None if known is None or known[0] in self.ours else known

    def write(self, tab_id: str, generation: int) -> None:
        if "tab" not in self.stored or self.stored["tab"][0] not in self.ours - {tab_id}:
            self.stored["tab"] = (tab_id, generation)
        self.ours.add(tab_id)

    def release(self, tab_id: str) -> None:
        self.ours.discard(tab_id)


@dataclass
class Page:
    """One page with an interpreter of its own. ``runs`` are the epochs in which its loop ran."""

    world: World
    agent: SimulatedAgent
    ports: Ports
    lifecycle: SimulatedLifecycle
    memory: Memory
    runs: list[int] = field(default_factory=list)
    contexts: list[LeaderContext] = field(default_factory=list)
    others: list[SimulatedLifecycle] = field(default_factory=list)
    """What further joins of the same page listen to."""

    def joining(self, **options: Any) -> Joining:
        lifecycle = self.lifecycle
        if lifecycle.listened_to:
            lifecycle = SimulatedLifecycle(self.agent)
            self.others.append(lifecycle)

        async def enter() -> JoinedTab:
            host = PageHost(self.ports, lifecycle, self.memory, JoinOptions(app=APP, **options))
            await host.enter()
            return JoinedTab(host, "window")

        return Joining(enter)

    async def join(self, **options: Any) -> JoinedTab:
        async def run() -> JoinedTab:
            return await self.joining(**options)

        return await self.agent.start(run())

    def call(self, function: Callable[[], Any]) -> Any:
        return self.agent.call(function)

    def lead(self, tab: JoinedTab, resource: str = "r", loop: Any = None, **policy: Any) -> Election:
        async def wait(context: LeaderContext) -> None:
            self.runs.append(context.epoch or 0)
            self.contexts.append(context)
            while True:
                await context.sleep(1.0)

        return self.call(lambda: tab.lead(resource, loop or wait, policy=LeadershipPolicy(**policy)))  # type: ignore[no-any-return]

    async def locks(self) -> LockSnapshot:
        return await self.agent.start(self.ports.locks.query())


def open_page(world: World, name: str, stored: dict[str, tuple[str, int]] | None = None) -> Page:
    agent = world.agent(name)
    memory = Memory({} if stored is None else stored)
    return Page(world, agent, world.ports(agent), SimulatedLifecycle(agent), memory)


async def led_by(world: World, election: Election, *, within: float = 30.0) -> Leading:
    await world.until(lambda: isinstance(election.status, Leading), within=within)
    assert isinstance(election.status, Leading)
    return election.status


def run(seed: int, test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    with World(seed) as world:
        world.run(test(world))


def held_by(world: World, agent: SimulatedAgent) -> list[str]:
    """What the browser's lock manager says that an agent holds or waits for, at this moment."""
    snapshot = world.lock_manager.snapshot()
    return sorted(lock.name for lock in (*snapshot.held, *snapshot.pending) if lock.client_id == agent.name)


async def lets_go(world: World, page: Page) -> None:
    """The page keeps no lock and waits for none, as soon as its messages have arrived."""
    await world.until(lambda: held_by(world, page.agent) == [], within=0.2)


# -- joining and leaving -----------------------------------------------------------------------------------------------


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
        election = page.lead(tab, loop=lambda context: None)
        await world.until(lambda: isinstance(election.status, BackingOff) and election.status.reason == "loop-failed")

    with caplog.at_level(logging.ERROR, "tabhelm"):
        run(1, test)
    assert "write `async def` before it" in caplog.text


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


# -- who it is ---------------------------------------------------------------------------------------------------------


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


# -- what the browser does ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_page_holds_nothing_that_others_wait_for(seed: int) -> None:
    async def test(world: World) -> None:
        pages = [open_page(world, name) for name in "ab"]
        tabs = [await page.join() for page in pages]
        first = pages[0].lead(tabs[0])
        await led_by(world, first)
        second = pages[1].lead(tabs[1])
        await world.sleep(1.0)
        before = world.loop.time()
        pages[0].lifecycle.freeze()
        await led_by(world, second)
        assert not [name for name in held_by(world, pages[0].agent) if ":leader:" in name], "let go inside the event"
        assert world.loop.time() - before < 1.0
        await world.sleep(30.0)
        with pytest.raises(LeadershipLost):
            pages[0].call(pages[0].contexts[0].next_token)
        assert tabs[1].presence().leaders["r"].tab_id == tabs[1].tab_id
        pages[1].lifecycle.freeze()
        pages[0].lifecycle.thaw()
        await world.until(lambda: pages[0].runs == [1, 3])
        assert tabs[0].state.lifecycle == "active"

    run(seed, test)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_page_in_the_cache_keeps_nothing_and_goes_on_when_it_comes_back(seed: int) -> None:
    async def test(world: World) -> None:
        page, other = open_page(world, "a"), open_page(world, "b")
        tab, others = await page.join(), await other.join()
        election = page.lead(tab)
        queue: Queue = page.call(lambda: tab.queue("mutations"))
        await led_by(world, election)
        standby = other.lead(others)
        await world.sleep(1.0)
        before = (tab.tab_id, tab.connection_id)
        page.lifecycle.navigate_away()
        await led_by(world, standby)
        assert held_by(world, page.agent) == []
        assert [info.tab_id for info in others.presence().tabs] == [others.tab_id], "it said goodbye"
        await world.sleep(60.0)
        assert page.agent.alive, "nothing evicted it"
        page.lifecycle.back()
        await world.until(lambda: len(others.presence().tabs) == 2)
        assert tab.tab_id == before[0] and tab.connection_id != before[1] and tab.generation == 2
        await page.agent.start(queue.enqueue({"n": 1}))
        assert (await page.agent.start(queue.stats())).queued == 1
        other.lifecycle.navigate_away()
        await world.until(lambda: page.runs == [1, 3])

    run(seed, test)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_goes_and_comes_back_at_any_moment_of_its_life(seed: int) -> None:
    async def test(world: World) -> None:
        for steps in range(30):
            page = open_page(world, f"p{steps}")
            joining = page.agent.start(page.joining().__aenter__())
            for _ in range(steps):
                await world.sleep(0.002)
            if not page.lifecycle.listened_to:
                await world.until(lambda p=page: p.lifecycle.listened_to)  # type: ignore[misc]
            page.lifecycle.navigate_away()
            await world.sleep(0.05)
            assert held_by(world, page.agent) == [], f"gone after {steps} steps"
            page.lifecycle.back()
            await world.sleep(world.rng.choice((0.0, 0.003, 0.01)))
            page.lifecycle.navigate_away()
            await world.sleep(0.05)
            assert held_by(world, page.agent) == [], f"gone again after {steps} steps"
            page.lifecycle.back()
            tab = await joining
            await led_by(world, page.lead(tab, f"r{steps}"))
            await page.agent.start(tab.leave())
            await lets_go(world, page)

    run(seed, test)


def test_a_page_that_leaves_while_it_is_away_leaves_nothing() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join()
        await led_by(world, page.lead(tab))
        page.lifecycle.navigate_away()
        page.lifecycle.back()
        await page.agent.start(tab.leave())
        await lets_go(world, page)
        assert not page.lifecycle.listened_to

    run(1, test)


def test_two_joins_of_one_page_come_back_each_with_its_own_id() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tabs = [await page.join(), await page.join()]
        ids = [tab.tab_id for tab in tabs]
        page.others[0].tell("pagehide")
        page.lifecycle.navigate_away()
        await world.sleep(1.0)
        assert held_by(world, page.agent) == []
        page.others[0].tell("pageshow")
        page.lifecycle.back()
        await world.until(lambda: [tab.generation for tab in tabs] == [2, 2])
        assert [tab.tab_id for tab in tabs] == ids

    run(1, test)


def test_visibility_and_network_are_told_and_obeyed() -> None:
    async def test(world: World) -> None:
        page, other = open_page(world, "a"), open_page(world, "b")
        tab, others = await page.join(), await other.join()
        election = page.lead(tab, online=True)
        await led_by(world, election)
        page.lifecycle.offline(True)
        await world.until(lambda: isinstance(election.status, Idle))
        assert isinstance(election.status, Idle) and election.status.reason == "offline"
        page.lifecycle.offline(False)
        await led_by(world, election)
        page.lifecycle.show(False)
        await world.until(lambda: [info.lifecycle for info in others.presence().tabs[1:]] == ["hidden"])
        assert isinstance(election.status, Leading)

    run(1, test)


# -- standing still ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loop_that_stood_still_for_too_long_may_not_write_when_it_wakes(seed: int) -> None:
    async def test(world: World) -> None:
        page, other = open_page(world, "a"), open_page(world, "b")
        tab, others = await page.join(stall_after=4.0), await other.join(stall_after=4.0)
        woken: list[str] = []
        late: list[float] = []

        async def writes(context: LeaderContext) -> None:
            clock = page.ports.clock
            while True:
                before = clock.monotonic()
                await clock.sleep(0.05)  # not the context's own: it would look by itself
                try:
                    context.next_token()
                except LeadershipLost as lost:
                    woken.append(lost.reason)
                    raise
                if clock.monotonic() - before > 4.0:
                    late.append(clock.monotonic() - before)

        first = page.lead(tab, loop=writes)
        await led_by(world, first)
        second = other.lead(others)
        await world.sleep(1.0)
        page.agent.hang(3.0)
        await world.sleep(5.0)
        assert isinstance(first.status, Leading) and woken == [], "a short standstill costs nothing"
        page.agent.hang(9.0)
        await led_by(world, second, within=12.0)
        await world.until(lambda: woken != [] or not isinstance(first.status, Leading), within=1.0)
        assert len(woken) <= 1 and late == []
        reasons = [e.reason for e in tab.events.recent if isinstance(e, LeadershipChanged) and e.before == "leading"]
        assert reasons[-1] in ("stalled", "lock-lost")
        await world.until(lambda: isinstance(first.status, tabhelm.Waiting))
        assert len(tab.presence().tabs) == 2

    run(seed, test)


def test_what_runs_first_after_a_standstill_may_not_write_either() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join(stall_after=4.0)
        election = page.lead(tab)
        await led_by(world, election)
        page.call(page.contexts[0].next_token)
        page.agent.hang(9.0)
        await world.sleep(8.999)
        with pytest.raises(LeadershipLost):  # as in an event handler that comes before every timer
            page.call(page.contexts[0].next_token)
        await world.until(lambda: page.runs == [1, 2])
        assert tab.state.lifecycle == "active"

    run(1, test)


def test_a_hidden_page_s_slow_timers_are_no_standstill() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join(stall_after=1.0)
        election = page.lead(tab)
        await led_by(world, election)
        page.lifecycle.show(False)
        for _ in range(3):
            page.agent.hang(60.0)  # what throttling to one timer a minute looks like from inside
            await world.sleep(61.0)
        page.agent.hang(40.0)
        await world.sleep(39.999)
        page.lifecycle.show(True)
        await world.sleep(5.0)
        assert page.runs == [1]
        page.agent.hang(2.0)
        await world.until(lambda: page.runs == [1, 2])

    run(1, test)


# -- queues ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_example_of_the_docs_flushes_a_queue(seed: int) -> None:
    async def test(world: World) -> None:
        receiver = SimulatedReceiver(world, "/api/operations")
        page, other = open_page(world, "a"), open_page(world, "b")
        others = await other.join()
        outbox: Queue = other.call(lambda: others.queue("mutations"))

        async def work() -> None:
            async with page.joining(capabilities={"offline.flush.v1"}) as tab:
                queue = tab.queue("mutations")

                async def flush(context: LeaderContext) -> None:
                    async for batch in queue.batches(context, limit=25):
                        await batch.send("/api/operations")

                policy = LeadershipPolicy(requires=frozenset({"offline.flush.v1"}), online=True)
                election = tab.lead(queue, flush, policy=policy)
                with pytest.raises(AlreadyStanding):
                    tab.lead(queue, flush)
                await election.wait_for(Leading)
                for number in range(60):
                    await queue.enqueue({"n": number})
                while (await queue.stats()).done < 63:
                    await page.ports.clock.sleep(0.1)

        for number in range(3):
            await other.agent.start(outbox.enqueue({"other": number}))
        await page.agent.start(work())
        assert len(receiver.accepted) == 63

    run(seed, test)


async def _stop(election: Election) -> None:
    election.stop()
    await election.stopped()


def test_a_scoped_queue_keeps_its_scope_and_obeys_the_session() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join(user_session="user:1")
        queue: Queue = page.call(lambda: tab.queue("mutations", scope="user:1"))
        election = page.lead(tab, queue)  # type: ignore[arg-type]
        assert election.resource.key == "offline-queue:mutations:user:1"
        await led_by(world, election)
        page.call(lambda: tab.update(user_session="user:2"))
        await world.until(lambda: isinstance(election.status, Idle))
        assert isinstance(election.status, Idle) and election.status.reason == "session-mismatch"
        page.call(lambda: tab.update(user_session=None, capabilities={"x"}))
        await world.sleep(60.0)
        assert isinstance(election.status, Idle), "nobody is signed in"
        page.call(lambda: tab.update(user_session="user:1"))
        await led_by(world, election)
        await page.agent.start(_stop(election))
        with pytest.raises(ValueError, match="scope 'user:3' is not that of queue 'mutations'"):
            page.call(lambda: tab.lead(queue, asyncio.sleep, scope="user:3"))  # type: ignore[arg-type]

    run(1, test)
