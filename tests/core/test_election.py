"""Elections in virtual time: who leads, how it stops, who is next."""

from __future__ import annotations

import asyncio

import pytest

from kit import Member, join, one_leader
from tabhelm.election import LeadershipPolicy
from tabhelm.errors import ElectionStopped, LeadershipLost
from tabhelm.leadership import BackingOff, Election, Idle, LeaderContext, Leading, Stopped, Waiting
from tabhelm.messages import Beacon, LeaderNote, TabNote, encode
from tabhelm.names import Resource, channel_name
from tabhelm.observe import LeadershipChanged, LoopFailed, LoopOverran
from tabhelm.simulated import World

SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_of_many_leads_one_stands_by_and_the_others_watch(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(5)]
            elections = [member.lead() for member in members]
            await one_leader(world, members)
            await world.sleep(5.0)
            assert sum(member.leading for member in members) == 1
            waiting = [e.status for e in elections if isinstance(e.status, Waiting)]
            assert sorted(status.standby for status in waiting) == [False, False, False, True]
            snapshot = await members[0].agent.start(members[0].ports.locks.query())
            assert len([lock for lock in snapshot.pending if ":leader:" in lock.name]) == 1

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["die", "freeze", "stop", "step-down", "offline"])
def test_when_the_leader_ends_another_leads_with_a_higher_epoch(seed: int, how: str) -> None:
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(3)]
            elections: dict[str, Election] = {m.agent.name: m.lead(online=True) for m in members}
            old = await one_leader(world, members)
            before = world.loop.time()
            await world.sleep(1.0)
            election = elections[old.agent.name]
            match how:
                case "die":
                    old.agent.die()
                case "freeze":
                    old.freeze()
                case "stop":
                    old.call(lambda: election.stop("done"))
                case "step-down":
                    old.call(lambda: election.step_down())
                case _:
                    old.set(online=False)
            others = [m for m in members if m is not old]
            new = await one_leader(world, others, within=5.0)
            assert max(new.led) > max(old.led)
            assert world.loop.time() - before < 2.0
            if how == "freeze":
                old.thaw()
                await world.sleep(5.0)
                assert not old.leading and new.leading
            if how == "stop":
                assert election.status == Stopped("done")
            if how == "offline":
                assert election.status == Idle("offline")

        world.run(main())


def test_a_grant_that_is_not_acknowledged_goes_on_to_the_next() -> None:
    with World(3) as world:

        async def deaf(_: Election) -> bool:
            await asyncio.get_running_loop().create_future()
            return True

        async def main() -> None:
            hung = join(world, "a", confirm=deaf)
            stuck = hung.lead()
            await world.until(lambda: isinstance(stuck.status, Waiting) and stuck.status.standby)
            healthy = join(world, "b")
            healthy.lead()
            await world.until(lambda: healthy.leading, within=10.0)
            assert isinstance(stuck.status, (BackingOff, Waiting)) and hung.led == []
            reasons = [e.reason for e in hung.services.events.recent if isinstance(e, LeadershipChanged)]
            assert "not-acknowledged" in reasons

        world.run(main())


def test_a_loop_that_fails_backs_off_longer_each_time_and_one_that_returns_does_not() -> None:
    with World(4) as world:
        starts: list[float] = []

        async def failing(context: LeaderContext) -> None:
            starts.append(world.loop.time())
            raise ValueError("broken")

        async def main() -> None:
            member = join(world, "a")
            member.lead(loop=failing)
            await world.sleep(40.0)
            pauses = [late - early for early, late in zip(starts, starts[1:], strict=False)]
            assert pauses[0] < 0.4 and 5.0 < pauses[-1] < 11.0 and len(starts) < 14
            failures = [e for e in member.services.events.recent if isinstance(e, LoopFailed)]
            assert failures[0].error == "ValueError: broken"

        world.run(main())


def test_a_loop_that_outlives_its_grace_leads_no_more_and_says_so() -> None:
    with World(5) as world:
        kept: list[LeaderContext] = []

        async def stubborn(context: LeaderContext) -> None:
            kept.append(context)
            never = asyncio.Event()
            for _ in range(2):  # asked to stop, and told again when its grace is over
                try:
                    await never.wait()
                except asyncio.CancelledError:
                    continue

        async def main() -> None:
            old = join(world, "a")
            election = old.lead(loop=stubborn, grace=2.0)
            await world.until(lambda: old.leading)
            other = join(world, "b")
            other.lead()
            await world.sleep(1.0)
            began = world.loop.time()
            old.call(lambda: election.step_down("enough"))
            await world.sleep(1.0)
            with pytest.raises(LeadershipLost, match="enough"):
                kept[0].next_token()
            assert not other.leading
            await world.until(lambda: other.leading, within=5.0)
            assert 2.0 <= world.loop.time() - began < 3.0
            assert any(isinstance(e, LoopOverran) for e in old.services.events.recent)

        world.run(main())


def test_max_hold_gives_the_next_its_turn() -> None:
    with World(6) as world:

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(2)]
            for member in members:
                member.lead(max_hold=10.0)
            await world.sleep(65.0)
            epochs = sorted(epoch for member in members for epoch in member.led)
            assert len(epochs) in (6, 7) and len(set(epochs)) == len(epochs)
            assert min(len(member.led) for member in members) >= 3

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_capability_that_comes_and_goes_acts_at_once(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            member = join(world, "a", capabilities=frozenset({"flush"}))
            election = member.lead(requires={"flush"})
            await world.until(lambda: member.leading)
            member.call(lambda: member.tab.update(capabilities=[]))
            await world.until(lambda: election.status == Idle("capability-missing"), within=0.1)
            member.call(lambda: member.tab.update(capabilities=["flush"]))
            await world.until(lambda: member.leading, within=1.0)
            member.call(lambda: member.tab.update(user_session="bob", session_changed=True))
            await world.until(lambda: not member.leading, within=0.1)
            await world.until(lambda: member.leading, within=1.0)
            assert member.led == [1, 2, 3]

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_storage_wiped_under_a_leader_that_checks_ends_its_tenure_and_the_next_epoch_is_higher(seed: int) -> None:
    with World(seed) as world:

        async def checking(context: LeaderContext) -> None:
            member.led.append(context.epoch or 0)
            while True:
                await context.sleep(0.5)
                await context.check()

        async def main() -> None:
            member.lead(loop=checking)
            await world.until(lambda: member.leading)
            world.storage.wipe()
            await world.until(lambda: len(member.led) == 2, within=10.0)
            assert member.led == [1, 2]
            assert len({grant.domain for grant in member.grants}) == 1

        member: Member = join(world, "a")
        world.run(main())


def test_leaving_stops_everything_and_leaves_nothing_behind() -> None:
    with World(8) as world:

        async def main() -> None:
            member = join(world, "a")
            election = member.lead()
            await world.until(lambda: member.leading)
            await member.agent.start(member.tab.leave("logout"))
            assert election.status == Stopped("logout")
            await member.agent.start(member.services.close())
            assert len(member.services.tasks) == 0
            snapshot = await member.agent.start(member.ports.locks.query())
            assert [lock.name for lock in snapshot.held] == ["app:v1:engine:e-a"], "the engine itself lives on"
            assert snapshot.pending == ()
            with pytest.raises(Exception, match="has left"):
                member.call(lambda: member.tab.queue("q"))

        world.run(main())


def test_a_queue_leaves_no_timer_behind() -> None:
    with World(8) as world:

        async def main() -> None:
            a, b = join(world, "a"), join(world, "b")
            queues = [member.call(lambda member=member: member.tab.queue("q")) for member in (a, b)]  # type: ignore[misc]
            await b.agent.start(queues[1].enqueue({"n": 1}))
            await world.sleep(1.0)
            await a.agent.start(queues[0].enqueue({"n": 2}))  # a will say so once more, and b look at what is left
            await a.agent.start(queues[0].enqueue({"n": 3}))
            await world.sleep(0.01)
            for member in (a, b):
                await member.agent.start(member.tab.leave("logout"))
                await member.agent.start(member.services.close())
            left = [timer for *_, agent, timer in world.loop._timers if agent in (a.agent, b.agent)]
            assert [timer for timer in left if not timer.cancelled()] == []

        world.run(main())


def test_the_leading_state_says_epoch_and_since() -> None:
    with World(9) as world:

        async def main() -> None:
            member = join(world, "a")
            election = member.lead()
            state = await member.agent.start(election.wait_for(Leading))
            assert isinstance(state, Leading) and state.epoch == 1
            leader = member.call(election.leader)
            assert leader is not None and (leader.tab_id, leader.epoch) == ("t-a", 1)

        world.run(main())


def test_an_engine_that_dies_is_no_longer_believed_to_lead() -> None:
    with World(7) as world:

        async def main() -> None:
            old, following, last = (join(world, name) for name in "abc")
            old.lead()
            await world.until(lambda: old.leading)
            standing = following.lead()
            await world.until(lambda: isinstance(standing.status, Waiting) and standing.status.standby)
            last.lead()
            await world.until(lambda: len(tabs(last)) == 3)
            # The one who leads and the one who stands by are gone without a word; nobody is in the queue.
            old.agent.die()
            following.agent.die()
            began = world.loop.time()
            await world.until(lambda: last.leading, within=30.0)
            assert world.loop.time() - began < 1.0
            assert tabs(last) == ["t-c"]

        world.run(main())


def test_beacons_of_no_engine_are_soon_forgotten() -> None:
    with World(8) as world:

        async def main() -> None:
            member = join(world, "a")
            member.lead()
            await world.until(lambda: member.leading)
            stranger = world.agent("x")
            channel = stranger.call(world.ports(stranger).channels.open, channel_name("app", 1))
            note = TabNote("t-x", "c-x", 1, "active", True, True, "", (), ("app:r",), 1e6)
            for sender in ("nobody", "no name: this", "x" * 500):
                beacon = Beacon(sender, 1, 15.0, (note,), (LeaderNote("app:r", "t-x", "c-x", "", 9, 0.0),))
                told: list[list[str]] = []
                stop = member.services.roster.subscribe(lambda told=told: told.append(tabs(member)))  # type: ignore[misc]
                stranger.call(channel.post, encode(beacon))
                await world.until(lambda told=told: told[:2] == [["t-a", "t-x"], ["t-a"]])  # type: ignore[misc]
                stop()
            assert member.leading

        world.run(main())


def test_a_tab_that_is_barred_leads_only_when_it_is_no_longer() -> None:
    with World(10) as world:
        reasons: list[str | None] = ["not-now"]

        async def main() -> None:
            member = join(world, "a")

            async def loop(context: LeaderContext) -> None:
                await context.sleep(1e6)

            def stand() -> Election:
                services = member.services.elections
                resource = Resource("app", "r")
                return Election(resource, loop, LeadershipPolicy(), member.tab, services, lambda: reasons[-1])

            election = member.call(stand)
            await world.sleep(5.0)
            assert election.status == Idle("not-now")
            reasons.append(None)
            member.call(election.look)
            await member.agent.start(election.wait_for(Leading))
            reasons.append("not-any-more")
            member.call(election.look)
            await member.agent.start(election.wait_for(Idle))
            assert election.status == Idle("not-any-more")
            member.call(election.stop)
            await member.agent.start(election.stopped())

        world.run(main())


def tabs(member: Member) -> list[str]:
    """The ids of the tabs that a member knows of."""
    return [tab.tab_id for tab in member.services.roster.tabs(member.agent.clock.monotonic())]


def test_a_leader_that_is_gone_is_out_of_the_rosters_though_its_engine_is_suspended_with_it() -> None:
    with World(1) as world:

        async def main() -> None:
            a, b = join(world, "a"), join(world, "b")

            async def slow_to_end(context: LeaderContext) -> None:
                try:
                    await context.sleep(3600.0)
                finally:
                    await asyncio.sleep(1.0)

            a.lead(loop=slow_to_end)
            await one_leader(world, [a])
            await world.until(lambda: len(b.services.roster.tabs(b.ports.clock.monotonic())) == 2)
            a.call(lambda: a.tab.vanish("bfcache"))
            await world.sleep(0.005)
            a.agent.freeze()
            await world.until(lambda: len(b.services.roster.tabs(b.ports.clock.monotonic())) == 1, within=5.0)

        world.run(main())


def test_who_waits_for_a_state_of_a_stopped_election_is_told() -> None:
    with World(1) as world:

        async def main() -> None:
            first, second = join(world, "a"), join(world, "b")
            first.lead()
            await one_leader(world, [first])
            election = second.lead()
            waiting = second.agent.start(election.wait_for(Leading))
            second.call(lambda: election.stop("enough"))
            with pytest.raises(ElectionStopped, match=r"'app:r' has stopped \(enough\)"):
                await waiting
            assert (await second.agent.start(election.wait_for(Leading, Stopped))) == Stopped("enough")
            with pytest.raises(ElectionStopped):
                await second.agent.start(election.wait_for(Leading))

        world.run(main())
