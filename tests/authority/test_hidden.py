"""The lease of pages that nobody sees: their timers fire once a minute."""

from __future__ import annotations

from typing import Any

import pytest
from lease_kit import Crew, fencing, reasons

from kit import Member
from tabhelm.authority import LeaseTimes
from tabhelm.errors import InvalidPolicy
from tabhelm.simulated import World

SEEDS = range(6)


def hide(member: Member) -> None:
    """The page is hidden, and has been for so long that the browser holds its timers back."""
    member.agent.clock.throttled, member.agent.clock.throttle = True, 60.0
    member.set(visible=False, lifecycle="hidden")


def show(member: Member) -> None:
    member.agent.clock.throttled = False
    member.set(visible=True, lifecycle="active")


def lease_of(world: World, resource: str = "r") -> dict[str, Any]:
    return fencing(world)[f"lease:app:v1:leader:{resource}"]


async def leading(crew: Crew, *, visible_standby: bool) -> tuple[Member, Member]:
    """The first leads in a hidden page, the second stands by."""
    first, second = crew.join("a", in_page=True), crew.join("b", in_page=True)
    crew.lead(first)
    await crew.led(first)
    crew.lead(second)
    await crew.world.sleep(crew.world.rng.uniform(5.0, 25.0))
    hide(first)
    if not visible_standby:
        hide(second)
    return first, second


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("visible_standby", [False, True])
def test_a_hidden_leader_leads_on(seed: int, visible_standby: bool) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = await leading(crew, visible_standby=visible_standby)
            for _ in range(1800):
                await world.sleep(1.0)
                assert crew.believers() == ["a"]
            assert (first.led, second.led, reasons(first)) == ([1], [], [])

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_written_at_once_that_a_lease_is_longer_now_and_shorter_again(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, _ = await leading(crew, visible_standby=True)
            await world.sleep(0.1)
            assert lease_of(world)["lease_ms"] == 200_000
            await world.sleep(world.rng.uniform(100.0, 300.0))
            show(first)
            await world.sleep(0.1)
            assert lease_of(world)["lease_ms"] == 15_000
            await world.sleep(60.0)
            assert first.leading and first.led == [1] and reasons(first) == []

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("visible_standby", [False, True])
def test_a_hidden_leader_that_died_is_replaced_after_some_minutes(seed: int, visible_standby: bool) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = await leading(crew, visible_standby=visible_standby)
            await world.sleep(world.rng.uniform(100.0, 300.0))
            first.agent.die()
            took = await crew.led(second, within=400.0)
            assert 135.0 < took < (205.0 if visible_standby else 305.0), took

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hidden_page_replaces_a_visible_leader_that_died_after_some_looks(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a", in_page=True), crew.join("b", in_page=True)
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            hide(second)
            await world.sleep(world.rng.uniform(100.0, 300.0))
            assert first.leading and second.led == []
            first.agent.die()
            assert 9.0 < await crew.led(second, within=400.0) < 245.0

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lease_of_a_hidden_page_is_claimed_for_as_long(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first = crew.join("a", in_page=True)
            hide(first)
            crew.lead(first)
            await crew.led(first, within=400.0)
            assert lease_of(world)["lease_ms"] == 200_000
            await world.sleep(600.0)
            assert first.led == [1] and reasons(first) == []

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shorter_lease_that_may_have_been_written_is_believed_in_for_no_longer(seed: int) -> None:
    """The page is shown, and what it writes then arrives, but the answer does not: others go by what they read."""
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = await leading(crew, visible_standby=True)
            await world.sleep(70.0)
            show(first)
            begun, hold = len(world.trace), crew.hold(first)

            def stepped() -> None:
                crew._watch()
                if any("committed" in line and "readwrite" in line for line in world.trace[begun:]):
                    world.loop.after_step = crew._watch
                    first.agent.freeze()  # its process stands still

            world.loop.after_step = stepped
            await world.until(lambda: first.agent.state == "frozen", within=1.0)
            assert hold.renewal < lease_of(world)["renewal"], "it has not heard of it yet"
            await crew.led(second)
            first.agent.thaw()
            await world.sleep(30.0)
            assert second.leading and not first.leading and reasons(first) == ["lease-renewal-failed"]

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_storage_wiped_under_a_hidden_leader(seed: int) -> None:
    """Whoever knows of its lease waits until it has written itself back."""
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = await leading(crew, visible_standby=True)
            await world.sleep(world.rng.uniform(70.0, 130.0))
            world.storage.wipe()
            await world.sleep(90.0)
            assert lease_of(world)["lease_ms"] == 200_000
            await world.sleep(200.0)
            assert first.leading and (first.led, second.led) == ([1], [])

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", range(20))
def test_chaos_of_hidden_pages(seed: int) -> None:
    """Hidden, shown, frozen, thawed, dead, and a store that hangs: never two believe, and in the end one leads."""
    with World(seed) as world:
        crew, rng = Crew(world), world.stream("chaos")
        members: list[Member] = []

        def newcomer() -> None:
            members.append(crew.join(f"m{len(members)}", in_page=True))
            crew.lead(members[-1])

        async def main() -> None:
            for _ in range(3):
                newcomer()
            for _ in range(40):
                some = rng.choice([member for member in members if member.agent.alive])
                runs = some.agent.state == "running"
                match rng.choice(["hide", "hide", "show", "show", "freeze", "thaw", "stall", "die", "hang", "calm"]):
                    case "hide" if runs:
                        hide(some)
                    case "show" if runs:
                        show(some)
                    case "freeze" if runs:
                        some.freeze()
                    case "stall" if runs:
                        some.agent.freeze()
                    case "thaw" if not runs:
                        some.thaw()
                    case "die" if rng.random() < 0.5:
                        some.agent.die()
                        newcomer()
                    case "hang":
                        world.faults.commit_delay = rng.choice([(0.0, 2.0), (0.0, 30.0), (20.0, 100.0)])
                    case "calm":
                        world.faults.commit_delay = (0.0, 0.004)
                await world.sleep(rng.choice([0.0, 0.01, 1.0, 14.0, 70.0, 150.0]))
            world.faults.commit_delay = (0.0, 0.004)
            for member in members:
                if member.agent.state == "frozen":
                    member.thaw()
                if member.agent.alive:
                    show(member)
            await world.sleep(400.0)
            assert len([member for member in members if member.agent.alive and member.leading]) == 1
            epochs = sorted(epoch for member in members for epoch in member.led)
            assert len(set(epochs)) == len(epochs), "no epoch led twice"

        world.run(main())
        assert crew.both == [], f"seed {seed}"


@pytest.mark.parametrize(
    "times",
    [
        {"hidden_lease": 130.0},
        {"hidden_lease": 60.0, "hidden_deadline": 130.0},
        {"hidden_deadline": 9.0},
        {"hidden_lease": 601.0},
    ],
)
def test_times_that_cannot_work_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(InvalidPolicy, match="hidden_lease"):
        LeaseTimes(**times)
