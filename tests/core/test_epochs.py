"""Epochs: issued once, durable before they are used, above everything remembered, never outbid for ever."""

from __future__ import annotations

import asyncio

import pytest

from tabhelm.errors import DatabaseClosed, LeadershipLost
from tabhelm.fencing.epochs import EpochIssuer, EpochMemory, Grant
from tabhelm.fencing.schema import SCHEMA
from tabhelm.fencing.token import MAX_NUMBER, HighWater
from tabhelm.simulated import SimulatedAgent, World

R = "app:r"


def issuer(world: World, name: str) -> tuple[SimulatedAgent, EpochIssuer]:
    agent = world.agent(name)
    ports = world.ports(agent)
    database = ports.databases.database("tabhelm:app", SCHEMA)
    return agent, EpochIssuer(database, ports.clock, ports.entropy, EpochMemory())


def yes() -> bool:
    return True


@pytest.mark.parametrize("seed", range(10))
def test_many_contexts_at_once_get_different_epochs_of_one_domain(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            found = [issuer(world, f"a{n}") for n in range(6)]
            grants: list[Grant] = await asyncio.gather(
                *(
                    agent.start(each.issue(R, agent.name, "web-locks", takeovers_seen=0, holds=yes))
                    for agent, each in found
                )
            )
            assert sorted(grant.epoch for grant in grants) == [1, 2, 3, 4, 5, 6]
            assert len({grant.domain for grant in grants}) == 1

        world.run(main())


def test_a_takeover_between_the_lock_and_the_epoch_aborts_the_issue() -> None:
    with World(1) as world:
        (a, first), (b, second) = issuer(world, "a"), issuer(world, "b")

        async def main() -> None:
            seen = await a.start(first.takeovers(R))
            robber = await b.start(second.issue(R, "b", "web-locks", takeovers_seen=0, takeover=True, holds=yes))
            with pytest.raises(LeadershipLost, match="taken-over"):
                await a.start(first.issue(R, "a", "web-locks", takeovers_seen=seen, holds=yes))
            await b.start(second.require_current(robber))
            assert await a.start(first.takeovers(R)) == 1

        world.run(main())


def test_the_count_of_our_last_grant_will_do_until_somebody_takes_over() -> None:
    with World(1) as world:
        (a, first), (b, second) = issuer(world, "a"), issuer(world, "b")

        async def main() -> None:
            assert await a.start(first.takeovers_before(R)) == 0
            await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))
            await b.start(second.issue(R, "b", "web-locks", takeovers_seen=0, takeover=True, holds=yes))
            seen = await a.start(first.takeovers_before(R))
            assert seen == 0, "from memory"
            with pytest.raises(LeadershipLost, match="taken-over"):
                await a.start(first.issue(R, "a", "web-locks", takeovers_seen=seen, holds=yes))
            seen = await a.start(first.takeovers_before(R))
            assert seen == 1, "read anew"
            assert (await a.start(first.issue(R, "a", "web-locks", takeovers_seen=seen, holds=yes))).epoch == 3

        world.run(main())


def test_a_lock_that_ended_while_the_database_opened_issues_nothing() -> None:
    with World(1) as world:
        a, first = issuer(world, "a")

        async def main() -> None:
            with pytest.raises(LeadershipLost, match="lock-lost"):
                await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=lambda: False))
            assert (await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))).epoch == 1

        world.run(main())


@pytest.mark.parametrize("seed", range(10))
def test_wiped_storage_is_repaired_by_whoever_remembers(seed: int) -> None:
    with World(seed) as world:
        (a, first), (b, second) = issuer(world, "a"), issuer(world, "b")

        async def main() -> None:
            old = await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))
            second.memory.heard(old.domain, R, old.epoch)  # from a beacon
            world.storage.wipe()
            with pytest.raises((LeadershipLost, DatabaseClosed)):
                await a.start(first.require_current(old))
            while True:
                try:
                    new = await b.start(second.issue(R, "b", "web-locks", takeovers_seen=0, holds=yes))
                    break
                except DatabaseClosed:
                    continue
            assert (new.domain, new.epoch) == (old.domain, old.epoch + 1)

        world.run(main())


def test_when_nobody_remembers_a_new_domain_begins() -> None:
    with World(1) as world:
        a, first = issuer(world, "a")

        async def main() -> None:
            old = await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))
            world.storage.wipe()
            a.die()
            b, second = issuer(world, "b")
            new = await b.start(second.issue(R, "b", "web-locks", takeovers_seen=0, holds=yes))
            assert new.domain != old.domain and new.epoch == 1
            second.memory.heard(old.domain, R, 99)  # a late beacon from the old world is not believed
            assert (await b.start(second.issue(R, "b", "web-locks", takeovers_seen=0, holds=yes))).epoch == 2

        world.run(main())


def test_a_receivers_higher_mark_is_overbid_only_by_the_holder_whose_store_is_behind() -> None:
    with World(1) as world:
        (a, first), (b, second) = issuer(world, "a"), issuer(world, "b")

        async def main() -> None:
            mine = await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))
            above = await a.start(first.reissue_above(mine, HighWater(9, 4, "x"), holds=yes))
            assert above.epoch == 10
            theirs = await b.start(second.issue(R, "b", "web-locks", takeovers_seen=0, holds=yes))
            assert theirs.epoch == 11
            # Two authorities: the one whose store says that somebody else leads must give up, however often it asks.
            for mark in (11, 12, 10):
                with pytest.raises(LeadershipLost, match="newer-epoch"):
                    await a.start(first.reissue_above(above, HighWater(mark, 1, "b"), holds=yes))
            await b.start(second.require_current(theirs))

        world.run(main())


def test_whoever_stood_by_before_the_wipe_goes_on_in_the_domain() -> None:
    with World(1) as world:
        (a, first), (b, second) = issuer(world, "a"), issuer(world, "b")

        async def main() -> None:
            grant = await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))
            seen = await b.start(second.takeovers(R))  # what it reads before it asks for the lock
            world.storage.wipe()
            following = await b.start(second.issue(R, "b", "web-locks", takeovers_seen=seen, holds=yes))
            assert (following.domain, following.epoch) == (grant.domain, 2)

        world.run(main())


def test_going_above_a_mark_leaves_a_domain_that_began_after_a_wipe_alone() -> None:
    with World(1) as world:
        (a, first), (b, second) = issuer(world, "a"), issuer(world, "b")

        async def main() -> None:
            old = await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))
            world.storage.wipe()
            # An engine that never heard of the old domain leads something else by now.
            new = await b.start(second.issue("app:other", "b", "web-locks", takeovers_seen=0, holds=yes))
            assert new.domain != old.domain
            while True:
                try:
                    with pytest.raises(LeadershipLost, match="storage-wiped"):
                        await a.start(first.reissue_above(old, HighWater(9, 1, "x"), holds=yes))
                    break
                except DatabaseClosed:
                    continue
            await b.start(second.require_current(new))

        world.run(main())


@pytest.mark.parametrize("mark", [MAX_NUMBER - 1, MAX_NUMBER])
def test_a_mark_above_which_no_epoch_is_left_is_not_believed(mark: int) -> None:
    with World(1) as world:
        a, first = issuer(world, "a")

        async def main() -> None:
            mine = await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))
            with pytest.raises(LeadershipLost, match="epochs-exhausted"):
                await a.start(first.reissue_above(mine, HighWater(mark, 1, "x"), holds=yes))
            assert (await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))).epoch == 2

        world.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_an_epoch_is_remembered_only_once_it_is_durable(seed: int) -> None:
    with World(seed) as world:
        a, first = issuer(world, "a")

        async def main() -> None:
            await a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))
            asking = a.start(first.issue(R, "a", "web-locks", takeovers_seen=0, holds=yes))
            await world.sleep(world.rng.uniform(0.0, 0.004))
            world.storage.wipe()
            try:
                grant = await asking
            except DatabaseClosed:
                assert first.memory.highest(first.memory.domain or "", R) == 1
            else:
                assert first.memory.highest(grant.domain, R) == grant.epoch

        world.run(main())
