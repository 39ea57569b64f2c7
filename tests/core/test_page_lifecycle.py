"""A page that runs its own engine: what it lets go in freeze and pagehide, and how it goes on."""

from __future__ import annotations

import pytest
from page_kit import SEEDS, held_by, led_by, lets_go, open_page, run

from tabhelm import Leading, Queue
from tabhelm.errors import LeadershipLost
from tabhelm.leadership import Idle
from tabhelm.simulated import World


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
