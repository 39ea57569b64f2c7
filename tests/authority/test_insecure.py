"""Pages without Web Locks that run Python themselves: they join, and leases decide among them."""

from __future__ import annotations

from typing import Any

import pytest
from page_kit import Page, led_by, open_page

from tabhelm import JoinedTab, LeadershipPolicy, Leading
from tabhelm.errors import NoAuthority
from tabhelm.observe import Degraded, EpochIssued, TaskFailed
from tabhelm.simulated import World

SEEDS = range(6)


async def two(world: World) -> list[tuple[Page, JoinedTab]]:
    world.faults.locks_denied = True
    pages = [open_page(world, name) for name in "ab"]
    return [(page, await page.join()) for page in pages]


def clean(tab: JoinedTab) -> None:
    assert not [event for event in tab.events.recent if isinstance(event, TaskFailed)]


@pytest.mark.parametrize("seed", SEEDS)
def test_they_elect_one_and_the_other_follows_when_it_dies(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            (one, first), (two_, second) = await two(world)
            leading = one.lead(first)
            await led_by(world, leading)
            (issued,) = [event for event in first.events.recent if isinstance(event, EpochIssued)]
            assert issued.authority == "indexeddb-lease"
            assert [event.after for event in first.events.recent if isinstance(event, Degraded)] == ["indexeddb-lease"]
            waiting = two_.lead(second)
            await world.sleep(40.0)
            assert two_.runs == []
            assert {each.tab_id for each in second.presence().tabs} == {first.tab_id, second.tab_id}
            one.agent.die()
            await led_by(world, waiting)
            assert two_.runs == [2]
            clean(second)
            await two_.agent.start(second.leave())

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_who_leaves_hands_over_at_once(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            (one, first), (other, second) = await two(world)
            await led_by(world, one.lead(first))
            waiting = other.lead(second)
            await world.sleep(3.0)
            before = world.loop.time()
            await one.agent.start(first.leave())
            await led_by(world, waiting)
            assert world.loop.time() - before < 1.0
            await other.agent.start(second.leave())

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["freeze", "pagehide"])
def test_a_page_that_stands_still_loses_its_lease_and_comes_back(seed: int, how: str) -> None:
    with World(seed) as world:

        async def main() -> None:
            (one, first), (other, second) = await two(world)
            await led_by(world, one.lead(first))
            waiting = other.lead(second)
            await world.sleep(3.0)
            tab_id, connection = first.tab_id, first.connection_id
            if how == "freeze":
                one.lifecycle.freeze()
            else:
                one.lifecycle.navigate_away()
            await led_by(world, waiting)
            await world.sleep(5.0)
            if how == "freeze":
                one.lifecycle.thaw()
            else:
                one.lifecycle.back()
            assert one.call(lambda: one.contexts[-1].lost)
            await world.sleep(30.0)
            assert other.runs == [2] and one.runs == [1]
            assert first.tab_id == tab_id and (first.connection_id == connection) == (how == "freeze")
            await other.agent.start(second.leave())
            await world.until(lambda: one.runs == [1, 3])
            clean(first)
            await one.agent.start(first.leave())

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("seconds", [0.5, 3.0, 7.0])
def test_after_a_short_freeze_everybody_agrees_on_one_leader(seed: int, seconds: float) -> None:
    """The freeze ended its leadership, however soon it was thawed: it must not go on leading unknown to everybody."""
    with World(seed) as world:

        async def main() -> None:
            (one, first), (other, second) = await two(world)
            standing = one.lead(first)
            await led_by(world, standing)
            waiting = other.lead(second)
            await world.sleep(7.0)
            one.lifecycle.freeze()
            await world.sleep(seconds)
            one.lifecycle.thaw()
            assert one.call(lambda: one.contexts[-1].lost)
            await world.sleep(40.0)
            leading = [election for election in (standing, waiting) if isinstance(election.status, Leading)]
            assert len(leading) == 1 and one.runs + other.runs == [1, 2]
            for page, election in ((one, standing), (other, waiting)):
                said = page.call(election.leader)
                assert said is not None and said.epoch == 2
            await one.agent.start(first.leave())
            await other.agent.start(second.leave())

        world.run(main())


def test_who_has_no_web_locks_does_not_try_to_watch_engines_again_and_again() -> None:
    with World(1) as world:
        asked: list[str] = []

        async def main() -> None:
            (one, first), (other, second) = await two(world)
            election = one.lead(first)
            await led_by(world, election)
            other.lead(second)
            await world.sleep(5.0)
            watch = second._tab.services.watch
            original = watch._outlive

            def outlive(engine_id: str) -> Any:
                asked.append(engine_id)
                return original(engine_id)

            watch._outlive = outlive  # type: ignore[method-assign]
            await world.sleep(60.0)
            one.call(election.step_down)  # so that the roster changes, if nothing else changed it
            await world.sleep(60.0)
            assert asked == []
            other.lifecycle.navigate_away()
            other.lifecycle.back()
            await world.sleep(30.0)
            assert len(asked) == 1, "asked once more: it was suspended in between"

        world.run(main())


def test_a_duplicated_tab_is_another_tab() -> None:
    with World(1) as world:

        async def main() -> None:
            world.faults.locks_denied = True
            stored: dict[str, tuple[str, int]] = {"tab": ("t-same", 4)}
            one, other = open_page(world, "a", dict(stored)), open_page(world, "b", dict(stored))
            first, second = await one.join(), await other.join()
            assert first.tab_id != second.tab_id

        world.run(main())


def test_with_neither_locks_nor_storage_joining_says_what_is_missing() -> None:
    with World(1) as world:

        async def main() -> None:
            world.faults.locks_denied = world.faults.storage_denied = True
            page = open_page(world, "a")
            with pytest.raises(NoAuthority) as raised:
                await page.join()
            said = str(raised.value)
            assert "web-locks: " in said and "has no Web Locks" in said
            assert "indexeddb-lease: " in said and "may not use IndexedDB" in said and "https" in said
            world.faults.storage_denied = False
            tab = await page.join()
            election = page.call(lambda: tab.lead("r", lambda context: context.sleep(1.0), policy=LeadershipPolicy()))
            await led_by(world, election)

        world.run(main())
