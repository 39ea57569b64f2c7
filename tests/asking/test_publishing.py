"""What a leader publishes reaches every follower: the newest at last, in order, and never a stale leader's."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import APP, Member, join, one_leader
from tabhelm.errors import LeadershipLost, NotCloneable
from tabhelm.leadership import Election, LeaderContext
from tabhelm.leadership.publishing import PublishedState
from tabhelm.messages import StateNote, encode
from tabhelm.names import channel_name
from tabhelm.simulated import World


class Choir:
    """Tabs with an engine each, whose leader publishes what it is told to."""

    def __init__(self, world: World, *names: str) -> None:
        self.world = world
        self.members: dict[str, Member] = {}
        self.elections: dict[str, Election] = {}
        self.contexts: dict[str, LeaderContext] = {}
        self.seen: dict[str, list[PublishedState]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        member = self.members[name] = join(self.world, name)

        async def loop(context: LeaderContext) -> None:
            self.contexts[name] = context
            while True:
                await context.sleep(1.0)

        election = self.elections[name] = member.lead(loop=loop)
        seen = self.seen[name] = []
        member.call(lambda: election.on_state(seen.append))

    async def leader(self) -> str:
        found = await one_leader(self.world, list(self.members.values()))
        return next(name for name, member in self.members.items() if member is found)

    def publish(self, name: str, value: Any) -> None:
        self.members[name].call(lambda: self.contexts[name].publish(value))

    async def all_see(self, value: Any, *, within: float = 20.0) -> None:
        def seen() -> bool:
            states = [self.elections[name].state for name, member in self.members.items() if member.agent.alive]
            return all(state is not None and state.value == value and state.current for state in states)

        await self.world.until(seen, within=within)


def simulate(test: Callable[[World], Awaitable[None]], seed: int = 1, **faults: Any) -> None:
    with World(seed) as world:
        for name, value in faults.items():
            setattr(world.faults, name, value)
        world.run(test(world))  # type: ignore[arg-type]


def test_every_value_in_order_and_those_who_come_late() -> None:
    async def main(world: World) -> None:
        choir = Choir(world, "a", "b", "c")
        leader = await choir.leader()
        await world.sleep(1.0)
        for value in range(5):
            choir.publish(leader, {"at": value})
            await world.sleep(0.01)
        await choir.all_see({"at": 4})
        for seen in choir.seen.values():
            assert [state.value["at"] for state in seen] == list(range(5))
            assert [state.number for state in seen] == [1, 2, 3, 4, 5]
            assert not any(state.missed for state in seen)
        choir.add("late")
        await choir.all_see({"at": 4}, within=1.0)
        assert [state.missed for state in choir.seen["late"]] == [0]

    simulate(main)


def test_a_tab_that_begins_to_follow_asks_a_leader_that_its_engine_knows() -> None:
    async def main(world: World) -> None:
        choir = Choir(world, "a")
        leader = await choir.leader()
        bystander = join(world, "z")
        other = bystander.lead("something-else")
        await world.sleep(2.0)
        choir.publish(leader, 1)
        await world.sleep(1.0)
        late = bystander.lead("r", requires={"nobody-has-it"})
        await world.until(lambda: late.state is not None, within=1.0)
        assert late.state is not None and late.state.value == 1
        assert other.state is None

    simulate(main)


def test_the_last_value_lost_is_found_missing_and_fetched() -> None:
    async def main(world: World) -> None:
        choir = Choir(world, "a", "b")
        leader = await choir.leader()
        await world.sleep(1.0)
        choir.publish(leader, 1)
        await choir.all_see(1)
        world.faults.channel_loss = 1.0
        for value in (2, 3, 4):
            choir.publish(leader, value)
        world.faults.channel_loss = 0.0
        await choir.all_see(4, within=6.0)
        other = next(name for name in choir.members if name != leader)
        assert [(state.value, state.missed) for state in choir.seen[other]] == [(1, 0), (4, 2)]

    simulate(main)


def test_a_value_outlives_its_leader_but_is_not_current() -> None:
    async def main(world: World) -> None:
        choir = Choir(world, "a", "b", "c")
        first = await choir.leader()
        await world.sleep(1.0)
        choir.publish(first, "old")
        await choir.all_see("old")
        choir.members.pop(first).agent.die()
        choir.elections.pop(first)
        second = await choir.leader()
        states = [election.state for election in choir.elections.values()]
        assert [(state.value, state.current) for state in states if state] == [("old", False)] * 2
        choir.publish(second, "new")
        await choir.all_see("new")
        state = choir.elections[second].state
        assert state is not None and (state.number, state.tab_id) == (1, f"t-{second}")

    simulate(main)


def test_who_leads_no_more_publishes_nothing_and_what_cannot_be_sent_is_named() -> None:
    async def main(world: World) -> None:
        choir = Choir(world, "a", "b")
        leader = await choir.leader()
        with pytest.raises(NotCloneable, match=r"the published value\.when"):
            choir.publish(leader, {"when": object()})
        choir.members[leader].call(choir.elections[leader].step_down)
        await world.until(lambda: choir.contexts[leader].lost)
        with pytest.raises(LeadershipLost):
            choir.publish(leader, 1)

    simulate(main)


def test_a_stale_leaders_word_is_ignored_and_counted() -> None:
    async def main(world: World) -> None:
        choir = Choir(world, "a", "b", "c")
        first = await choir.leader()
        await world.sleep(1.0)
        choir.members[first].call(choir.elections[first].step_down)
        await world.until(lambda: not choir.members[first].leading)
        second = await choir.leader()
        await world.sleep(1.0)
        choir.publish(second, "right")
        await choir.all_see("right")
        epoch = choir.contexts[second].epoch or 0
        stale = StateNote(f"e-{first}", "app:r", f"c-{first}", f"t-{first}", epoch - 1, 99, '"wrong"')
        forged = StateNote(f"e-{first}", "app:r", f"c-{first}", f"t-{first}", epoch + 1000, 99, '"forged"')
        for note in (stale, forged, stale):
            world.channel_hub.post(channel_name(APP, 1), encode(note))
        await world.sleep(5.0)
        await choir.all_see("right", within=0.1)
        for member in choir.members.values():
            assert member.services.events.ignored_counts["stale-state"] == 2
        choir.publish(second, "right again")
        await choir.all_see("right again")

    simulate(main)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), loss=st.sampled_from([0.0, 0.3, 0.7]), late=st.sampled_from([0.005, 0.5, 3.0]))
def test_whatever_is_lost_or_late_numbers_only_grow_and_the_newest_arrives(seed: int, loss: float, late: float) -> None:
    async def main(world: World) -> None:
        choir = Choir(world, "a", "b", "c")
        value = 0
        for turn in range(3):
            leader = await choir.leader()
            world.faults.channel_loss = loss
            for _ in range(5):
                value += 1
                try:
                    choir.publish(leader, value)
                except (KeyError, LeadershipLost):
                    pass
                await world.sleep(0.3)
            world.faults.channel_loss = 0.0
            if turn < 2 and leader in choir.contexts:
                choir.members[leader].call(choir.elections[leader].step_down)
                await world.sleep(1.0)
        leader = await choir.leader()
        await world.sleep(10.0)
        leader = await choir.leader()
        choir.publish(leader, "end")
        await choir.all_see("end", within=30.0)
        for seen in choir.seen.values():
            marks = [(state.epoch or 0, state.number) for state in seen]
            assert marks == sorted(marks), json.dumps([*marks])

    simulate(main, seed, channel_delay=(0.0, late))


def test_what_nobody_follows_any_more_is_forgotten() -> None:
    async def main(world: World) -> None:
        member = join(world, "a")
        other = join(world, "b")
        publishing = member.services.exchange.publishing

        async def loop(context: LeaderContext) -> None:
            context.publish("x" * 90_000)
            await context.sleep(1e6)

        for number in range(10):
            election = member.call(lambda number=number: member.tab.lead("case", loop, scope=f"c{number}"))
            await world.until(lambda election=election: election.state is not None)
            assert list(publishing._followers) == [f"app:case:c{number}"]
            member.call(election.stop)
            await member.agent.start(election.stopped())
            assert election.state is not None and not election.state.current
        assert publishing._followers == {}
        # Whoever stands again sees what there is, also what was published meanwhile.
        leading = other.lead(loop=loop)
        await world.until(lambda: leading.state is not None)
        first = member.lead(requires={"nobody-has-it"})
        await world.until(lambda: first.state is not None)
        member.call(first.stop)
        await member.agent.start(first.stopped())
        again = member.lead(requires={"nobody-has-it"})
        assert again.state is None
        await world.until(lambda: again.state is not None and again.state.current, within=1.0)

    simulate(main)


def test_a_follower_stays_while_another_tab_of_its_engine_stands() -> None:
    async def main(world: World) -> None:
        member = join(world, "a")
        follow = member.services.exchange.publishing.follow
        forget = member.services.exchange.publishing.unfollow
        first, second = follow("app:r"), follow("app:r")
        assert first is second
        forget(first)
        assert follow("app:r") is first
        forget(first)
        forget(first)
        assert follow("app:r") is not first

    simulate(main)
