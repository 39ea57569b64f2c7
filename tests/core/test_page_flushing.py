"""A page that runs its own engine: the queues that its own loop empties."""

from __future__ import annotations

import asyncio

import pytest
from page_kit import SEEDS, led_by, open_page, run

from tabhelm import LeaderContext, LeadershipPolicy, Leading, Queue
from tabhelm.errors import AlreadyStanding
from tabhelm.leadership import Election, Idle
from tabhelm.simulated import SimulatedReceiver, World


@pytest.mark.parametrize("seed", SEEDS)
def test_the_example_of_the_docs_flushes_a_queue(seed: int) -> None:
    async def test(world: World) -> None:
        receiver = SimulatedReceiver(world, "/api/operations")
        page, other = open_page(world, "a"), open_page(world, "b")
        others = await other.join()
        outbox: Queue = other.call(lambda: others.queue("mutations"))

        async def work() -> None:
            async with page.joining(capabilities={"offline.flush.v1"}) as tab:
                queue = tab.queue("mutations")

                async def flush(context: LeaderContext) -> None:
                    async for batch in queue.batches(context, limit=25):
                        await batch.send("/api/operations")

                policy = LeadershipPolicy(requires=frozenset({"offline.flush.v1"}), online=True)
                election = tab.lead(queue, flush, policy=policy)
                with pytest.raises(AlreadyStanding):
                    tab.lead(queue, flush)
                await election.wait_for(Leading)
                for number in range(60):
                    await queue.enqueue({"n": number})
                while (await queue.stats()).done < 63:
                    await page.ports.clock.sleep(0.1)

        for number in range(3):
            await other.agent.start(outbox.enqueue({"other": number}))
        await page.agent.start(work())
        assert len(receiver.accepted) == 63

    run(seed, test)


async def _stop(election: Election) -> None:
    election.stop()
    await election.stopped()


def test_a_scoped_queue_keeps_its_scope_and_obeys_the_session() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join(user_session="user:1")
        queue: Queue = page.call(lambda: tab.queue("mutations", scope="user:1"))
        election = page.lead(tab, queue)  # type: ignore[arg-type]
        assert election.resource.key == "offline-queue:mutations:user:1"
        await led_by(world, election)
        page.call(lambda: tab.update(user_session="user:2"))
        await world.until(lambda: isinstance(election.status, Idle))
        assert isinstance(election.status, Idle) and election.status.reason == "session-mismatch"
        page.call(lambda: tab.update(user_session=None, capabilities={"x"}))
        await world.sleep(60.0)
        assert isinstance(election.status, Idle), "nobody is signed in"
        page.call(lambda: tab.update(user_session="user:1"))
        await led_by(world, election)
        await page.agent.start(_stop(election))
        with pytest.raises(ValueError, match="scope 'user:3' is not that of queue 'mutations'"):
            page.call(lambda: tab.lead(queue, asyncio.sleep, scope="user:3"))  # type: ignore[arg-type]

    run(1, test)
