"""Who takes over by force waits for whoever may be beginning, and lets go of a claim whose reason has passed."""

from __future__ import annotations

import asyncio

import pytest

from kit import join, one_leader
from tabhelm.election import Takeover
from tabhelm.leadership import LeaderContext, Waiting
from tabhelm.simulated import World


@pytest.mark.parametrize("seed", range(8))
def test_a_claim_on_a_hung_engine_that_then_dies_is_dropped(seed: int) -> None:
    """The store answers late; meanwhile the lock is free, and who stood by for it leads."""
    with World(seed) as world:

        async def main() -> None:
            hung, next_one, claimer = (join(world, name) for name in "abc")
            hung.lead()
            await one_leader(world, [hung])
            waiting = next_one.lead()
            await world.until(lambda: waiting.status == Waiting(True, 0))
            election = claimer.lead()
            await world.until(lambda: isinstance(election.status, Waiting))
            await world.sleep(10.0)
            hung.agent.stop()
            world.faults.database_delay = (8.0, 8.0)
            assert claimer.call(election.claim, 10.0)
            await world.sleep(1.0)
            world.faults.database_delay = (0.0, 0.002)
            hung.agent.die()
            await world.until(lambda: next_one.leading, within=3.0)
            await world.sleep(20.0)
            assert next_one.leading and not claimer.leading

        world.run(main())
        assert [line for line in world.trace if " robbed of " in line] == []


@pytest.mark.parametrize("seed", range(8))
def test_who_takes_over_is_given_the_time_to_begin(seed: int) -> None:
    """The lock goes to a page that stands still, and two others wait; the first that takes over has a slow store."""
    with World(seed) as world:

        async def main() -> None:
            leader, stopped, *others = (join(world, name, in_page=True) for name in "abcd")
            leader.lead()
            await one_leader(world, [leader])
            waiting = stopped.lead()
            await world.until(lambda: waiting.status == Waiting(True, 0))
            for member in others:
                member.lead()
            await world.sleep(10.0)
            stopped.agent.stop()
            leader.agent.die()
            world.faults.commit_delay = (8.0, 9.0)
            await world.sleep(150.0)
            assert sum(member.leading for member in others) == 1

        world.run(main())
        assert [line.split()[1] for line in world.trace if " robbed of " in line] == ["b"]


@pytest.mark.parametrize("seed", range(8))
def test_who_steps_down_is_given_its_grace(seed: int) -> None:
    """Its end is told at once; the lock stays held until its loop has ended, for as long as the policy allows."""
    with World(seed) as world:

        async def main() -> None:
            old, other = join(world, "old"), join(world, "new")  # by its name the new one is first in line

            async def loop(context: LeaderContext) -> None:
                try:
                    while True:
                        await context.sleep(1.0)
                except asyncio.CancelledError:
                    await old.ports.clock.sleep(38.0)

            election = old.lead(loop=loop, grace=40.0, takeover=Takeover.fenced(10.0))
            await one_leader(world, [old])
            waiting = other.lead(grace=40.0, takeover=Takeover.fenced(10.0))
            await world.until(lambda: waiting.status == Waiting(True, 0))
            await world.sleep(20.0)
            start = world.loop.time()
            old.call(election.step_down)
            await world.until(lambda: other.leading)
            assert world.loop.time() - start > 37.9

        world.run(main())
        assert [line for line in world.trace if " robbed of " in line] == []
