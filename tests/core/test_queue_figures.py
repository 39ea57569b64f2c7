"""What a queue says of itself: how fast it is emptied, and how old the oldest operation is."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from queue_kit import Ledger, opened, put, reasons, simulated

from kit import Member, join
from tabhelm.queue import Operation, Outcome, Queue, QueueStats, Sending
from tabhelm.queue.rate import Rate
from tabhelm.queue.totals import Totals
from tabhelm.simulated import World


async def stats(member: Member, queue: Queue) -> QueueStats:
    return await member.agent.start(queue.stats())


# -- the rate ----------------------------------------------------------------------------------------------------------


@simulated
async def test_every_engine_sees_how_fast_a_queue_is_emptied_whoever_empties_it(world: World) -> None:
    a, b = join(world, "a"), join(world, "b")

    async def slow(operation: Operation, sending: Sending) -> None:
        await world.sleep(0.25)

    theirs = opened(b)  # it only looks
    queue = opened(a, flush=False)
    await a.agent.start(queue.enqueue_many([{"n": n} for n in range(100)]))
    assert (await stats(b, theirs)).rate == (await stats(a, queue)).rate == 0.0
    opened(a, sender=lambda operation, sending: slow(operation, sending), payloads="json", batch=1)
    for second in range(20):
        await world.sleep(1.0)
        if second % 2:
            await stats(b, theirs)
    here, there = (await stats(a, queue)).rate, (await stats(b, theirs)).rate
    assert 2.5 < here <= 4.0 and there == pytest.approx(here, rel=0.1)
    await world.until(lambda: a.services.queues.open(queue.shared.resource).store.totals.done == 100)  # type: ignore[union-attr]
    await world.sleep(20.0)  # a look after the last change, and a window
    assert (await stats(a, queue)).rate == (await stats(b, theirs)).rate == 0.0


def looked(rate: Rate, *looks: tuple[float, int], born: str = "q") -> None:
    for now, done in looks:
        rate.saw(now, Totals(born=born, done=done))


@pytest.mark.parametrize(
    ("looks", "now", "expected"),
    [
        ([], 100.0, 0.0),
        ([(100.0, 500)], 100.0, 0.0),  # who comes late does not know when it was
        ([(100.0, 0), (105.0, 50)], 105.0, 5.0),
        ([(100.0, 0), (105.0, 50)], 112.5, 2.5),  # half of it lies outside of the window by now
        ([(100.0, 0), (160.0, 600)], 160.0, 10.0),  # seldom looked at: a tenth of it is of the last ten seconds
        ([(0.0, 0), (3600.0, 0), (3600.5, 100)], 3601.0, 10.0),
        ([(100.0, 0), (105.0, 50), (105.1, 40), (105.2, 50)], 106.0, 5.0),  # an older look that came later
        ([(100.0, 0), (100.1, 5), (100.2, 10), (100.3, 15)], 101.0, 1.5),
    ],
)
def test_a_rate_is_what_was_done_in_the_last_ten_seconds(
    looks: list[tuple[float, int]], now: float, expected: float
) -> None:
    rate = Rate()
    looked(rate, *looks)
    assert rate.per_second(now) == pytest.approx(expected)


def test_a_queue_that_was_wiped_begins_anew() -> None:
    rate = Rate()
    looked(rate, (100.0, 50), (101.0, 60))
    looked(rate, (102.0, 0), (103.0, 20), born="another")
    assert rate.per_second(103.0) == pytest.approx(3.0)


def test_a_flusher_that_nobody_asks_remembers_no_more_for_that() -> None:
    rate = Rate()
    sizes = []
    for n in range(100_000):
        looked(rate, (n / 1000, n))
        if n % 10_000 == 9_999:
            sizes.append(len(pickle.dumps(rate)))
    assert max(sizes) < 5_000, sizes
    assert rate.per_second(100.0) == pytest.approx(1000.0, rel=0.05)


# -- the oldest --------------------------------------------------------------------------------------------------------


@simulated
async def test_the_oldest_age_follows_what_is_sent_dies_and_comes_back(world: World) -> None:
    a, b = join(world, "a"), join(world, "b")
    decided: dict[str, Any] = {}

    def decide(operation: Operation, sending: Sending) -> Any:
        return decided.get(operation.op_id, Outcome.retry())

    async def ages() -> tuple[float | None, float | None]:
        """As each engine says."""
        await world.sleep(5.0)
        return (await stats(a, queue)).oldest_age, (await stats(b, theirs)).oldest_age

    queue = opened(a, sender=Ledger(decide), payloads="json", base_delay=1.0, max_delay=1.0, max_attempts=1000)
    theirs = opened(b)
    assert await ages() == (None, None)
    began: dict[int, float] = {}
    for number in (1, 2, 3):
        began[number] = world.loop.time()
        await put(a, queue, number, partition=f"p{number}")
        await world.sleep(10.0)

    async def oldest_is(number: int) -> None:
        for age in await ages():
            assert age == pytest.approx(world.loop.time() - began[number], abs=0.5), number

    await oldest_is(1)
    decided["op-1"] = "committed"
    await oldest_is(2)
    decided["op-2"] = Outcome.rejected("no")
    await oldest_is(3)
    assert await reasons(a, queue) == {"op-2": "no"}
    del decided["op-2"]
    assert await a.agent.start(queue.retry_dead(["op-2"])) == 1
    await oldest_is(2)  # it is older than the oldest that was known
    decided |= {"op-2": "committed", "op-3": Outcome.rejected("no")}
    assert await ages() == (None, None)
    assert await b.agent.start(theirs.remove_dead(["op-3"])) == 1
    assert await ages() == (None, None)


@simulated
async def test_after_a_wipe_the_oldest_is_one_of_the_new(world: World) -> None:
    a = join(world, "a")

    def decide(operation: Operation, sending: Sending) -> Outcome | None:
        return None if operation.op_id in ("op-0", "op-1", "op-2", "op-3") else Outcome.retry()

    queue = opened(a, sender=Ledger(decide), payloads="json")
    await put(a, queue, *range(5))
    await world.sleep(100.0)
    assert (await stats(a, queue)).done == 4
    assert (await stats(a, queue)).oldest_age == pytest.approx(100.0, abs=1.0)
    world.storage.wipe()
    await world.sleep(10.0)
    assert (await stats(a, queue)).oldest_age is None
    began = world.loop.time()
    await put(a, queue, 9)
    await world.sleep(3.0)
    assert (await stats(a, queue)).oldest_age == pytest.approx(world.loop.time() - began, abs=0.5)
    for number in range(10, 16):  # further than the oldest was before
        await put(a, queue, number)
    await world.sleep(3.0)
    assert (await stats(a, queue)).oldest_age == pytest.approx(world.loop.time() - began, abs=0.5)


@simulated
async def test_a_letter_that_blocks_stands_in_line_and_another_does_not(world: World) -> None:
    a = join(world, "a")
    queue = opened(a, sender=Ledger(lambda operation, sending: "rejected"), payloads="json", rejected="block")
    await put(a, queue, 1)
    await world.sleep(50.0)
    assert (await stats(a, queue)).blocked == 1
    assert (await stats(a, queue)).oldest_age == pytest.approx(50.0, abs=1.0)
    assert await a.agent.start(queue.remove_dead(["op-1"])) == 1
    assert (await stats(a, queue)).oldest_age is None
