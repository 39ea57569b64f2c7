"""Whose turn is it? Preference without flapping, turns without starvation, a rest for the unhealthy, few messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit import Member, join, one_leader
from tabhelm.authority.web_locks import WebLocksHold
from tabhelm.fencing.epochs import Grant
from tabhelm.leadership import BackingOff, Election, LeaderContext, Leading, Waiting
from tabhelm.messages import WIRE_VERSION
from tabhelm.observe import LeadershipChanged
from tabhelm.simulated import World

SEEDS = range(6)


def changes(members: list[Member]) -> list[tuple[float, LeadershipChanged]]:
    """Filled with every step of these members' elections, in order, with the world's time."""
    found: list[tuple[float, LeadershipChanged]] = []
    for member in members:

        def note(event: object, world: World = member.world) -> None:
            if isinstance(event, LeadershipChanged):
                found.append((world.loop.time(), event))

        member.services.events.subscribe(note)
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("preference", ["visible", "capability"])
def test_a_leader_yields_to_one_that_the_policy_prefers(seed: int, preference: str) -> None:
    policy: dict[str, Any] = {"visible": "prefer"} if preference == "visible" else {"prefers": {"big"}}
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(3)]
            for member in members:
                member.set(lifecycle="hidden", visible=False)
            elections = {member.agent.name: member.lead(**policy, cool_down=20.0) for member in members}
            old = await one_leader(world, members)
            started = world.loop.time()
            steps = changes(members)
            best = next(m for m in members if m is not old)
            await world.sleep(1.0)
            if preference == "visible":
                best.set(lifecycle="active", visible=True)
            else:
                best.call(lambda: best.tab.update(capabilities=["big"]))
            await world.until(lambda: best.leading, within=25.0)
            assert 20.0 <= world.loop.time() - started < 21.0, "not before its cool-down, and soon after"
            assert [event.reason for _, event in steps if event.before == "leading"] == ["outranked"]
            await world.sleep(100.0)
            assert best.leading, "and it does not come back"
            assert isinstance(elections[old.agent.name].status, Waiting)

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_time_leader_yields_at_once_when_it_is_hidden(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(2)]
            for member in members:
                member.lead(visible="prefer")
            old = await one_leader(world, members)
            other = next(m for m in members if m is not old)
            await world.sleep(60.0)
            start = world.loop.time()
            old.set(lifecycle="hidden", visible=False)
            await world.until(lambda: other.leading, within=2.0)
            assert world.loop.time() - start < 0.5

        world.run(main())


@given(
    seed=st.integers(0, 1000),
    moves=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0.05, 15.0)), min_size=5, max_size=40),
)
@example(  # two clocks of different speed
    seed=301,
    moves=[
        *[(0, True, 7.8), (0, False, 12.9), (0, True, 13.8), (0, False, 14.6), (0, True, 13.6), (2, False, 0.25)],
        *[(3, False, 4.1), (0, True, 4.4), (3, True, 0.3), (1, False, 9.0), (0, True, 12.0), (2, False, 12.1)],
        *[(0, True, 14.1), (0, False, 13.4), (0, True, 0.05), (3, True, 2.5), (2, False, 5.7), (3, False, 3.8)],
        *[(2, True, 15.0), (1, False, 10.5), (3, False, 6.7)],
    ],
)
@settings(max_examples=25, deadline=None)
def test_no_flapping_whatever_is_shown_and_hidden(seed: int, moves: list[tuple[int, bool, float]]) -> None:
    """A leader is outranked at most once per cool-down, and in the end a visible tab leads if there is one."""
    cool_down = 30.0
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(4)]
            for member in members:
                member.lead(visible="prefer", cool_down=cool_down)
            await one_leader(world, members)
            steps = changes(members)
            for index, visible, pause in moves:
                members[index].set(lifecycle="active" if visible else "hidden", visible=visible)
                await world.sleep(pause)
            await world.sleep(cool_down + 5.0)
            yielded = [at for at, event in steps if event.reason == "outranked" and event.before == "leading"]
            gaps = [late - early for early, late in zip(yielded, yielded[1:], strict=False)]
            assert all(gap >= 0.998 * cool_down for gap in gaps), gaps  # clocks run up to 0.1 % fast
            leaders = [member for member in members if member.leading]
            assert len(leaders) == 1
            assert leaders[0].tab.state.visible or not any(member.tab.state.visible for member in members)

        world.run(main())


@given(
    seed=st.integers(0, 1000),
    count=st.integers(2, 6),
    hidden=st.sets(st.integers(0, 5)),
    scores=st.lists(st.integers(-5, 5), min_size=6, max_size=6),
    capable=st.sets(st.integers(0, 5)),
)
@settings(max_examples=25, deadline=None)
def test_no_eligible_tab_starves(seed: int, count: int, hidden: set[int], scores: list[int], capable: set[int]) -> None:
    """Under ``max_hold`` everybody leads once in a round, however the tabs rank; nobody twice before all have."""
    hold = 10.0
    with World(seed) as world:

        async def main() -> None:
            members = []
            for n in range(count):
                member = join(world, f"m{n}", capabilities=frozenset({"big"} if n in capable else ()))
                if n in hidden:
                    member.set(lifecycle="hidden", visible=False)
                member.lead(max_hold=hold, prefers={"big"}, score=lambda _, n=n: scores[n], cool_down=1000.0)
                members.append(member)
            await one_leader(world, members)
            steps = changes(members)
            await world.sleep((2 * count + 2) * (hold + 1.0))
            led = [event.tab for _, event in steps if event.after == "leading"]
            assert set(led) == {member.tab.identity.tab_id for member in members}
            for start in range(len(led) - count + 1):
                window = led[start : start + count]
                assert len(set(window)) == count, f"{window} in {led}"

        world.run(main())


def test_turns_are_taken_without_epochs_too() -> None:
    """Where the authority is not fenced, turns are counted by what the tabs say."""

    async def unfenced(self: WebLocksHold) -> Grant | None:
        self._require_held()
        return None

    with World(2) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(WebLocksHold, "begin", unfenced)

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(3)]
            for member in members:
                member.lead(max_hold=10.0, authorities=("web-locks",))
            await one_leader(world, members)
            steps = changes(members)
            await world.sleep(100.0)
            led = [event.tab for _, event in steps if event.after == "leading"]
            assert all(len(set(led[n : n + 3])) == 3 for n in range(len(led) - 2)) and len(led) > 6, led
            assert {event.epoch for _, event in steps if event.after == "leading"} == {None}

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_score_leads_and_everybody_ranks_alike(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            scores = {"m0": 1.0, "m1": 5.0, "m2": 3.0, "m3": 2.0}
            members = [join(world, name) for name in scores]
            elections = {m.agent.name: m.lead(score=lambda tab: scores[tab.tab_id[2:]]) for m in members}
            first = await one_leader(world, members)
            await world.sleep(1.0)
            waiting = {n: e.status for n, e in elections.items() if isinstance(e.status, Waiting)}
            order = sorted(waiting, key=lambda name: -scores[name])
            assert [waiting[name].rank for name in order] == [0, 1, 2]
            scores[order[-1]] = 9.0
            last = next(m for m in members if m.agent.name == order[-1])
            last.call(elections[order[-1]].look)
            await world.sleep(1.0)
            first.call(elections[first.agent.name].stop)
            await world.until(lambda: last.leading, within=2.0)

        world.run(main())


def test_an_eligibility_function_acts_at_once_and_a_broken_one_says_so_once() -> None:
    with World(1) as world:

        async def main() -> None:
            answers: dict[str, object] = {"a": "on-battery"}

            def eligible(tab: Any) -> bool | str:
                answer = answers["a"]
                if isinstance(answer, Exception):
                    raise answer
                return answer  # type: ignore[return-value]

            a, b = join(world, "a"), join(world, "b")
            election = a.lead(eligible=eligible)
            await world.sleep(1.0)
            assert election.status.reason == "on-battery"  # type: ignore[union-attr]
            b.lead()
            await world.until(lambda: b.leading)
            assert (
                "app:r"
                not in next(
                    tab for tab in b.services.roster.tabs(b.ports.clock.monotonic()) if tab.tab_id == "t-a"
                ).stands
            )
            answers["a"] = True
            a.call(election.look)
            await world.until(lambda: isinstance(election.status, Waiting), within=0.1)
            b.agent.die()
            await world.until(lambda: a.leading, within=1.0)
            answers["a"] = False
            a.call(election.look)
            await world.until(lambda: not a.leading, within=0.1)
            await world.sleep(1.0)
            assert election.status.reason == "ineligible"  # type: ignore[union-attr]
            answers["a"] = ValueError("broken")
            for _ in range(5):
                a.call(election.look)
                await world.sleep(0.5)
            assert election.status.reason == "eligible-failed"  # type: ignore[union-attr]
            assert a.services.events.counts["task-failed"] == 1

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_unhealthy_one_does_not_win_again_in_its_cool_down(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            well = {"sick": True}

            async def loop(context: LeaderContext) -> None:
                sick.led.append(context.epoch or 0)
                await context.sleep(1.0)
                context.health(lambda: not well["sick"], every=1.0)
                await context.sleep(10_000.0)

            sick, other = join(world, "sick"), join(world, "other")
            election = sick.lead(loop=loop, cool_down=40.0)
            await world.until(lambda: sick.leading)
            stood = other.lead()
            await world.until(lambda: isinstance(stood.status, Waiting) and stood.status.standby)
            await world.until(lambda: other.leading, within=5.0)
            resigned = world.loop.time()
            assert isinstance(election.status, BackingOff) and election.status.reason == "unhealthy"
            well["sick"] = False
            while world.loop.time() < resigned + 35.0:
                other.call(stood.step_down)  # however often the other one goes
                await world.until(lambda: other.leading, within=5.0)
                assert not sick.leading
                await world.sleep(3.0)
            await world.sleep(10.0)
            now = other.ports.clock.monotonic()
            seen = next(tab for tab in other.services.roster.tabs(now) if tab.tab_id == "t-sick")
            assert "app:r" in seen.stands and isinstance(election.status, Waiting), "rested, without any other news"
            other.call(stood.stop)
            await world.until(lambda: sick.leading, within=5.0)

        world.run(main())


def test_the_unhealthy_one_is_better_than_nobody_and_tries_ever_more_slowly() -> None:
    with World(3) as world:

        async def loop(context: LeaderContext) -> None:
            context.health(lambda: False)
            await context.sleep(10_000.0)

        async def main() -> None:
            alone = join(world, "alone")
            alone.lead(loop=loop, cool_down=60.0)
            steps = changes([alone])
            await world.sleep(120.0)
            began = [at for at, event in steps if event.after == "leading"]
            pauses = [late - early for early, late in zip(began, began[1:], strict=False)]
            assert pauses[0] < 1.0 and 4.0 < pauses[-1] < 11.0, pauses

        world.run(main())


def test_twenty_tabs_that_start_together_cost_order_of_tabs() -> None:
    """Channel messages and lock requests until all is quiet, for 10, 20 and 40 engines: no squares."""
    counted: dict[int, Counter[str]] = {}
    for size in (10, 20, 40):
        with World(5) as world:
            counts: Counter[str] = Counter()

            async def main(size: int = size, world: World = world, counts: Counter[str] = counts) -> None:
                hub, manager = world.channel_hub, world.lock_manager
                post, request = hub.post, manager.request

                def counting_post(name: str, text: str, *rest: Any) -> None:
                    assert f'"tabhelm":{WIRE_VERSION}' in text
                    counts["messages"] += 1
                    post(name, text, *rest)

                def counting_request(*given: Any, **named: Any) -> Any:
                    counts["locks"] += 1
                    return request(*given, **named)

                hub.post = counting_post  # type: ignore[method-assign]
                manager.request = counting_request  # type: ignore[method-assign]
                members = [join(world, f"m{n}") for n in range(size)]
                elections: list[Election] = [member.lead() for member in members]
                await one_leader(world, members, within=2.0)
                counts["first leader, ms"] = round(world.loop.time() * 1000)
                await world.sleep(10.0)
                assert sum(isinstance(e.status, Leading) for e in elections) == 1
                assert sum(isinstance(e.status, Waiting) and e.status.standby for e in elections) == 1
                counts["grants"] = sum(len(member.grants) for member in members)

            world.run(main())
            counted[size] = counts
    print("\nstart together:", {size: dict(counts) for size, counts in counted.items()})
    for what in ("messages", "locks"):
        per_tab = {size: counts[what] / size for size, counts in counted.items()}
        assert per_tab[20] <= {"messages": 3, "locks": 10}[what], (what, per_tab)
        assert per_tab[40] <= 1.3 * per_tab[10], (what, per_tab)
    assert all(counts["grants"] == 1 for counts in counted.values())
