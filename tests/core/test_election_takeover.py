"""Who is silent for too long loses its lock by force, and nobody else does."""

from __future__ import annotations

import pytest

from kit import APP, Member, join, one_leader
from tabhelm.election import Takeover
from tabhelm.errors import LeadershipLost
from tabhelm.leadership import LeaderContext, Waiting
from tabhelm.names import engine_lock
from tabhelm.observe import LeadershipChanged, TookOver
from tabhelm.presence.engine_watch import FEW
from tabhelm.simulated import Faults, World

SEEDS = range(8)
AFTER = 60.0


def robberies(world: World) -> list[str]:
    return [line for line in world.trace if " robbed of " in line]


async def others_stand_by(world: World, members: list[Member], leader: Member) -> None:
    """Wait until one of the others has its request queued."""
    await world.until(
        lambda: any(
            isinstance(election.status, Waiting) and election.status.standby
            for member in members
            if member is not leader
            for election in member.tab.elections.values()
        )
    )


async def successor(world: World, members: list[Member], old: Member, *, within: float) -> Member:
    """Wait until another one leads."""
    others = [member for member in members if member is not old]
    await world.until(lambda: any(member.leading for member in others), within=within)
    return next(member for member in others if member.leading)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["stopped", "frozen in silence"])
def test_a_leader_that_hangs_with_its_lock_is_replaced_by_force(seed: int, how: str) -> None:
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}", in_page=True) for n in range(3)]
            tokens: list[LeaderContext] = []

            async def loop(context: LeaderContext) -> None:
                tokens.append(context)
                while True:
                    await context.sleep(1.0)

            for member in members:
                member.lead(loop=loop)
            old = await one_leader(world, members)
            await others_stand_by(world, members, old)
            await world.sleep(20.0)
            start = world.loop.time()
            if how == "stopped":
                old.agent.stop()
            else:
                old.agent.freeze()  # no event told it: its channel handlers still run, and answer nothing
            new = await successor(world, members, old, within=AFTER + 5.0)
            assert world.loop.time() - start > AFTER - 5.1, "its last word may be a beat old"
            took = [event for event in new.services.events.recent if isinstance(event, TookOver)]
            assert [event.epoch for event in took] == [2]
            assert AFTER * 1000 <= took[0].silent_for_ms < AFTER * 1000 + 1000
            assert len(robberies(world)) == 1

            if how == "stopped":
                old.agent.go()
            else:
                old.agent.thaw()
            await world.until(lambda: not old.leading, within=1.0)
            with pytest.raises(LeadershipLost, match="lock-stolen"):
                tokens[0].next_token()
            changes = [event for event in old.services.events.recent if isinstance(event, LeadershipChanged)]
            assert [event.reason for event in changes if event.after == "stepping-down"] == ["lock-stolen"]
            await world.sleep(300.0)
            assert new.leading and not old.leading
            assert len(robberies(world)) == 1

        world.run(main())


def test_a_shorter_time_and_never() -> None:
    with World(1) as world:

        async def main() -> None:
            old = join(world, "old")
            old.lead()
            await one_leader(world, [old])
            patient = join(world, "patient")
            patient.lead(takeover=Takeover.never)
            await others_stand_by(world, [old, patient], old)
            await world.sleep(20.0)
            old.agent.stop()
            await world.sleep(1000.0)
            assert robberies(world) == [] and not patient.leading
            patient.agent.die()
            eager = join(world, "eager")
            eager.lead(takeover=Takeover.fenced(after=10.0))
            start = world.loop.time()
            await world.until(lambda: eager.leading)
            assert 29.0 < world.loop.time() - start < 32.0, "it never heard a leader: perhaps one ends, and one begins"

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_lives_is_never_robbed(seed: int) -> None:
    with World(seed, faults=Faults(channel_delay=(0.0, 1.0), lock_delay=(0.0, 0.5))) as world:

        async def main() -> None:
            members = [join(world, f"m{n}", in_page=n % 2 == 0) for n in range(4)]
            for member in members:
                member.lead(takeover=Takeover.fenced(after=10.0), max_hold=97.0)
            await world.sleep(1000.0)
            assert sum(member.leading for member in members) == 1

        world.run(main())
        assert robberies(world) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hidden_leader_whose_timers_fire_once_a_minute_is_not_robbed(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            old, other = join(world, "old", in_page=True), join(world, "other", in_page=True)
            old.lead()
            await one_leader(world, [old])
            other.lead(takeover=Takeover.fenced(after=10.0))
            await world.sleep(5.0)
            old.set(lifecycle="hidden", visible=False)
            await world.sleep(1.0)  # the last beat before the throttling already promises less
            old.agent.clock.throttle, old.agent.clock.throttled = 60.0, True
            await world.sleep(1800.0)
            assert old.leading and robberies(world) == []
            old.agent.stop()
            start = world.loop.time()
            await world.until(lambda: other.leading, within=130.0)
            assert world.loop.time() - start > 50.0

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hidden_standby_whose_timers_fire_once_a_minute_takes_over_too(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            old, other = join(world, "old", in_page=True), join(world, "other", in_page=True)
            old.lead()
            await one_leader(world, [old])
            other.lead(takeover=Takeover.fenced(after=10.0))
            other.set(lifecycle="hidden", visible=False)
            other.agent.clock.throttle, other.agent.clock.throttled = 60.0, True
            await world.sleep(600.0)
            assert old.leading and robberies(world) == []
            old.agent.stop()
            await world.until(lambda: other.leading, within=6 * 60.0)

        world.run(main())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("who", ["standby", "all"])
@pytest.mark.parametrize("hidden", [False, True])
def test_who_stood_still_itself_has_heard_no_silence(seed: int, who: str, hidden: bool) -> None:
    """After a thaw some timer fires first, before the leader's words that wait in the queue, or are yet to be said."""
    with World(seed, faults=Faults(channel_delay=(0.0, 1.0))) as world:

        async def main() -> None:
            members = [join(world, f"m{n}", in_page=True) for n in range(3)]
            for member in members:
                member.lead(takeover=Takeover.fenced(after=10.0))
            old = await one_leader(world, members)
            sleepers = members if who == "all" else [member for member in members if member is not old]
            if hidden:
                for member in sleepers:
                    member.set(lifecycle="hidden", visible=False)
                    if member is not old:
                        member.agent.clock.throttle, member.agent.clock.throttled = 60.0, True
            for _ in range(4):
                await world.sleep(world.rng.uniform(30.0, 150.0))
                for member in sleepers:
                    member.agent.stop()
                await world.sleep(world.rng.choice([20.0, 61.0, 3600.0]))
                for member in sleepers:
                    if who == "all":
                        await world.sleep(world.rng.uniform(0.0, 1.0))
                    member.agent.go()
            await world.sleep(100.0)
            assert old.leading

        world.run(main())
        assert robberies(world) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_waiter_that_was_stopped_in_silence_and_then_granted_the_lock_is_passed_over(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            old, stopped, other = (join(world, name, in_page=True) for name in ("a", "b", "c"))
            old.lead()
            await one_leader(world, [old])
            stopped.lead()
            await others_stand_by(world, [old, stopped], old)
            other.lead()
            await world.sleep(10.0)
            stopped.agent.stop()
            await world.sleep(1.0)
            old.agent.die()
            await world.until(lambda: other.leading, within=AFTER + 10.0)
            stopped.agent.go()
            await world.sleep(30.0)
            assert other.leading and not stopped.leading

        world.run(main())
        assert len(robberies(world)) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_two_protocols_that_share_a_queue_hear_each_other(seed: int) -> None:
    with World(seed) as world:

        async def flush(context: LeaderContext, _: object) -> None:
            while True:
                await context.sleep(1.0)

        async def main() -> None:
            old, new = join(world, "old", protocol=1), join(world, "new", protocol=2)
            for member in (old, new):
                member.call(lambda member=member: member.tab.queue("mutations", loop=flush))
            await one_leader(world, [old, new])
            await world.sleep(600.0)
            leader = next(member for member in (old, new) if member.leading)
            other = next(member for member in (old, new) if member is not leader)
            assert robberies(world) == [] and not other.leading
            assert other.services.memory.highest(leader.grants[-1].domain, "app:offline-queue:mutations") == 1
            leader.agent.stop()
            await world.until(lambda: other.leading, within=AFTER + 6.0)

        world.run(main())


def pending_watches(world: World) -> dict[str, int]:
    """How many engine locks each agent asks for."""
    counts: dict[str, int] = {}
    for name, queue in world.lock_manager.queues.items():
        if ":engine:" in name:
            for request in queue:
                counts[request.agent.name] = counts.get(request.agent.name, 0) + 1
    return counts


def test_many_engines_need_few_lock_requests_and_still_notice_the_deaths_that_matter() -> None:
    with World(1) as world:
        count = 40

        async def main() -> None:
            members = [join(world, f"m{n:02}") for n in range(count)]
            elections = [member.lead() for member in members]
            leader = await one_leader(world, members)
            await world.sleep(60.0)
            watches = pending_watches(world)
            assert max(watches.values()) <= FEW
            assert sum(watches.values()) <= FEW * count
            first = next(m for m, e in zip(members, elections, strict=True) if e.status == Waiting(True, 0))
            for victim in (first, leader):
                name = victim.services.engine_id
                asking = {request.agent.name for request in world.lock_manager.queues[engine_lock(APP, 1, name)]}
                relevant = [member for member in members if member is not victim]
                assert asking >= {member.agent.name for member in relevant if member is not leader}
                victim.agent.die()
                members.remove(victim)
                await world.sleep(1.0)
                assert [member for member in relevant if name in member.services.roster.engines()] in ([], [leader])
                await world.sleep(5.0)
            await one_leader(world, members)
            # Who is first in line changes all the time; nobody goes on watching all that once were.
            for member in members[::-1] * 2:
                member.set(visible=False, lifecycle="hidden")
                await world.sleep(1.0)
                member.set(visible=True, lifecycle="active")
            await world.sleep(60.0)
            assert max(pending_watches(world).values()) <= FEW

        world.run(main())


def test_a_lock_taken_back_by_a_sign_at_the_last_moment() -> None:
    """The store is asked before the theft; a leader that speaks meanwhile keeps its lock."""
    with World(1) as world:

        async def main() -> None:
            old, other = join(world, "old"), join(world, "other")
            old.lead()
            await one_leader(world, [old])
            election = other.lead()
            await others_stand_by(world, [old, other], old)
            await world.sleep(10.0)
            old.agent.stop()
            await world.sleep(AFTER - 6.0)
            world.faults.database_delay = (8.0, 8.0)
            await world.sleep(6.0)
            old.agent.go()
            await world.sleep(12.0)
            world.faults.database_delay = (0.0, 0.002)
            await world.sleep(5.0)
            assert old.leading and isinstance(election.status, Waiting)

        world.run(main())
        assert robberies(world) == []
