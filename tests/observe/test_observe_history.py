"""The log of leaders: complete in ordinary life, bounded, and never in anybody's way."""

from __future__ import annotations

import pytest

from kit import Member, join, one_leader
from tabhelm.leadership import Election, Leading
from tabhelm.names import history_database
from tabhelm.observe import Reign
from tabhelm.observe.history import HISTORY_SCHEMA, KEEP, REIGNS, _Entry
from tabhelm.ports import Transaction
from tabhelm.simulated import World
from tabhelm.tasks import within


async def history(member: Member, count: int = KEEP) -> list[Reign]:
    return await member.agent.start(member.tab.history(count))  # type: ignore[no-any-return]


async def hand_over(world: World, members: list[Member], elections: list[Election], reason: str) -> None:
    old = next(member for member in members if member.leading)
    old.call(lambda: elections[members.index(old)].step_down(reason))
    await world.until(lambda: not old.leading and sum(m.leading for m in members) == 1)


@pytest.mark.parametrize("seed", range(6))
def test_who_led_when_and_why_it_ended_is_known_to_every_engine_and_to_the_next(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}", version=f"1.{n}") for n in range(3)]
            elections = [member.lead() for member in members]
            first = await one_leader(world, members)
            await world.sleep(5.0)
            await hand_over(world, members, elections, "your-turn")
            second = next(member for member in members if member.leading)
            await world.sleep(5.0)
            expected = [
                (2, second.tab.identity.tab_id, second.tab.facts.version, None),
                (1, first.tab.identity.tab_id, first.tab.facts.version, "your-turn"),
            ]
            for member in members:
                found = await history(member)
                assert [(r.epoch, r.tab_id, r.version, r.reason) for r in found] == expected
                assert found[1].authority == "web-locks" and found[1].resource == "app:r"
                assert found[1].ended is not None and 4.0 < found[1].ended - found[1].began < 7.0
                assert found[0].ended is None
            for member in members:
                member.agent.process.crash()
            late = join(world, "late")
            late.lead()
            await world.until(lambda: late.leading)
            await world.sleep(3.0)
            found = await history(late)
            assert [(r.epoch, r.reason) for r in found] == [(3, None), (2, "unknown"), (1, "your-turn")]
            assert [r.epoch for r in await history(late, 1)] == [3]

        world.run(main())


def test_the_log_is_bounded() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            log = member.services.history

            async def many() -> None:
                for number in range(KEEP + 60):
                    reign = Reign("app:r", number, "t", "e", "", "", float(number), number + 0.5, "x")
                    log._pending.append(_Entry(reign))
                    if number % 7 == 0:
                        await log.write()

            await member.agent.start(many())
            found = await history(member)
            assert [reign.epoch for reign in found] == list(range(KEEP + 59, 59, -1))

        world.run(main())


def test_a_wiped_storage_is_a_shorter_history() -> None:
    with World(1) as world:

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(2)]
            elections = [member.lead() for member in members]
            await one_leader(world, members)
            await world.sleep(3.0)
            await hand_over(world, members, elections, "one")
            await world.sleep(3.0)
            world.storage.wipe()
            await world.sleep(1.0)
            await hand_over(world, members, elections, "two")
            await world.sleep(3.0)
            found = await history(members[0])
            # The leader of epoch 2 was told that its epoch is gone, and its end came into the new storage.
            assert [(r.epoch, r.reason) for r in found] == [(4, None), (3, "two"), (2, "storage-wiped")]

        world.run(main())


def test_a_full_storage_costs_the_history_only() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            election = member.lead()
            await world.until(lambda: member.leading)
            world.faults.quota = 0
            await world.sleep(3.0)
            assert member.services.history.failures == 1
            assert isinstance(election.status, Leading)
            world.faults.quota = None
            member.call(lambda: election.step_down("again"))
            await world.until(lambda: isinstance(election.status, Leading) and election.status.epoch == 2)
            await world.sleep(3.0)
            assert [(r.epoch, r.reason) for r in await history(member)] == [(2, None), (1, "again")]

        world.run(main())


def test_a_page_frozen_in_the_midst_of_writing_holds_up_nobody_s_election() -> None:
    for delay in (0.99, 0.995, 1.0, 1.001, 1.002, 1.004, 1.01):
        with World(3) as world:

            async def main(world: World = world, delay: float = delay) -> None:
                first, second = join(world, "a", in_page=True), join(world, "b")
                first.lead()
                await world.until(lambda: first.leading, step=0.0005)
                second.lead()
                await world.sleep(delay)
                first.freeze()
                await world.until(lambda: second.leading, within=3.0)

            world.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_leaving_writes_down_the_end(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            member = join(world, "a")
            member.lead()
            await world.until(lambda: member.leading)
            await member.agent.start(member.tab.leave("logout"))
            await member.agent.start(member.services.close())
            other = join(world, "b")
            assert [(r.epoch, r.reason) for r in await history(other)] == [(1, "logout")]

        world.run(main())


def test_whoever_would_not_wait_for_a_history_that_hangs_loses_no_entry() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            member.lead()
            await world.until(lambda: member.leading)
            blocker = world.agent("blocker")
            ports = world.ports(blocker)

            async def hold() -> None:
                async def body(tx: Transaction) -> None:
                    await tx.count(REIGNS)
                    blocker.freeze()
                    await tx.count(REIGNS)

                database = ports.databases.database(history_database("app"), HISTORY_SCHEMA)
                await database.transaction([REIGNS], "readwrite", body)

            blocker.start(hold())
            await world.until(lambda: blocker.frozen)
            clock = member.ports.clock
            with pytest.raises(TimeoutError):
                await member.agent.start(within(clock, 0.5, member.tab.history()))
            assert member.leading
            blocker.die()
            assert [reign.epoch for reign in await history(member)] == [1]

        world.run(main())
