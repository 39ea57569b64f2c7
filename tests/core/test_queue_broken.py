"""Where to look for work, and what a queue does with answers that make no sense: each case was found broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from queue_kit import Ledger, applied, opened, put, simulated
from test_queue_http import answering
from test_queue_store import Bench, claimed, ids, op

from kit import join
from tabhelm.errors import DatabaseBlocked
from tabhelm.observe import QueueLost
from tabhelm.ports import HttpAnswer
from tabhelm.queue import Operation, Outcome, Sending
from tabhelm.simulated import SimulatedReceiver, World
from tabhelm.simulated.http import HttpRequest

URL = "https://receiver.example/operations"


def in_bench(function: Callable[[World, Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        with World(1) as world:
            bench = Bench(world, "a")
            world.run(bench.agent.start(function(world, bench)))

    run.__name__ = function.__name__
    return run


# -- hints -------------------------------------------------------------------------------------------------------------


@in_bench
async def test_an_operation_that_blocks_does_not_hide_one_that_waits_before_it(world: World, bench: Bench) -> None:
    # An own batch sender may say so; and each of a batch counts its attempts by itself.
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(1), op(2)])
    claim = claimed(await store.claim(grant, 9, rejected="block"))
    outcomes = {"op-1": Outcome("op-1", "retry"), "op-2": Outcome("op-2", "rejected")}
    await store.settle(grant, claim, outcomes, {"op-1": 5.0}, rejected="block")
    await world.sleep(10.0)
    assert ids(await store.claim(grant, 9, rejected="block")) == ["op-1"]


@in_bench
async def test_an_operation_that_blocks_does_not_hide_a_dead_letter_put_back_before_it(
    world: World, bench: Bench
) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(1), op(2)])
    claim = claimed(await store.claim(grant, 1))
    await store.settle(grant, claim, {"op-1": Outcome("op-1", "rejected")})  # by another tab, whose option is "dead"
    claim = claimed(await store.claim(grant, 1, rejected="block"))
    assert await store.retry_dead(["op-1"]) == 1
    await store.settle(grant, claim, {"op-2": Outcome("op-2", "rejected")}, rejected="block")
    assert ids(await store.claim(grant, 9, rejected="block")) == ["op-1"]


@in_bench
async def test_an_operation_that_waits_does_not_hide_a_dead_letter_put_back_before_it(
    world: World, bench: Bench
) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(1), op(2)])
    claim = claimed(await store.claim(grant, 1))
    await store.settle(grant, claim, {"op-1": Outcome("op-1", "rejected")})
    claim = claimed(await store.claim(grant, 1))
    assert await store.retry_dead(["op-1"]) == 1
    await store.settle(grant, claim, {"op-2": Outcome("op-2", "retry")}, {"op-2": 3600.0})
    assert ids(await store.claim(grant, 9)) == ["op-1"]


@in_bench
async def test_a_wait_of_a_clock_that_was_set_back_does_not_begin_anew_with_the_next_attempt(
    world: World, bench: Bench
) -> None:
    store, grant = bench.store, await bench.grant()
    bench.agent.clock.wall_offset += 365 * 86_400.0
    await store.enqueue([op(1), op(2)])
    claim = claimed(await store.claim(grant, 9))
    await store.settle(grant, claim, {"op-1": Outcome("op-1", "retry")}, {"op-1": 5.0})
    bench.agent.clock.wall_offset -= 365 * 86_400.0
    claim = claimed(await store.claim(grant, 9))  # the wait is over
    assert [each.op_id for each in claim.operations] == ["op-1", "op-2"]
    # A failure of many says nothing of any of them: no delay.
    unknown = {each.op_id: Outcome(each.op_id, "unknown") for each in claim.operations}
    await store.settle(grant, claim, unknown)
    assert ids(await store.claim(grant, 9)) == ["op-1", "op-2"]


# -- a storage of which nobody knows whether it wrote ------------------------------------------------------------------


class Doubtful:
    """A database that completes one transaction, and then says that nobody knows whether it did."""

    def __init__(self, database: Any, when: Callable[[], bool]) -> None:
        self._database = database
        self._when = when
        self.doubted = False

    async def transaction(self, *given: Any, **more: Any) -> Any:
        result = await self._database.transaction(*given, **more)
        if not self.doubted and self._when():
            self.doubted = True
            raise DatabaseBlocked("the browser did not finish a transaction; whether it was written is not known")
        return result


@simulated
async def test_a_claim_that_was_written_though_the_storage_did_not_say_so_is_not_in_flight_for_ever(
    world: World,
) -> None:
    a = join(world, "a")
    ledger = Ledger()
    queue = opened(a, sender=ledger)
    await world.until(lambda: a.leading)
    store: Any = queue.shared.store
    store._database = doubtful = Doubtful(store._database, lambda: bool(world.storage.dump("tabhelm:app")["claims"]))
    await put(a, queue, 1, 2)
    await world.until(lambda: ledger.sent == ["op-1", "op-2"], within=300.0)
    assert doubtful.doubted


# -- answers that make no sense ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_headers_function_that_was_cancelled_has_failed_and_is_asked_again(lanes: int) -> None:
    # It awaited a task that it shares with others, and that somebody cancelled.
    @simulated
    async def test(world: World) -> None:
        receiver = SimulatedReceiver(world, URL)
        asked: list[int] = []

        async def bearer() -> dict[str, str]:
            asked.append(len(asked))
            if len(asked) in (2, 3):
                raise asyncio.CancelledError
            return {"Authorization": "Bearer x"}

        a = join(world, "a")
        queue = opened(a, endpoint=URL, headers=bearer, lanes=lanes)
        await world.until(lambda: a.leading)
        await put(a, queue, 1, partition="p")
        await put(a, queue, 2, partition="q")
        await world.until(lambda: sorted(applied(receiver)) == [1, 2], within=300.0)
        assert [grant.epoch for grant in a.grants] == [1], "it is a failure of the headers, not of the leader"

    test()


@pytest.mark.parametrize("word", ["skipped"])
def test_a_sender_that_never_says_how_it_went_is_not_asked_again_without_a_pause(word: Any) -> None:
    @simulated
    async def test(world: World) -> None:
        a = join(world, "a")
        ledger = Ledger(lambda operation, sending: Outcome("", word) if len(ledger.sent) < 8 else None)
        queue = opened(a, sender=ledger)
        await world.until(lambda: a.leading)
        began = world.loop.time()
        await put(a, queue, 1)
        await world.until(lambda: len(ledger.sent) == 8, within=600.0)
        assert world.loop.time() - began > 3.0

    test()


@simulated
async def test_a_receiver_that_skips_for_no_reason_is_not_asked_again_without_a_pause(world: World) -> None:
    def respond(request: HttpRequest) -> HttpAnswer | None:
        items = json.loads(request.body or "{}")["operations"]
        results = [{"op_id": item["op_id"], "status": "skipped"} for item in items]
        return HttpAnswer(200, {}, json.dumps({"results": results})) if items else None

    answering(world, respond)
    a = join(world, "a")
    queue = opened(a, endpoint=URL)
    await world.until(lambda: bool(world.network.requests))
    await put(a, queue, 1)
    before = len(world.network.requests)
    await world.sleep(30.0)
    assert len(world.network.requests) - before < 30


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_sender_that_is_deaf_to_its_end_does_not_hold_the_queue_for_ever(lanes: int) -> None:
    @simulated
    async def test(world: World) -> None:
        a = join(world, "a")
        sent: list[str] = []

        async def send(operation: Operation, sending: Sending) -> None:
            sent.append(operation.op_id)
            while sent == ["op-1"]:  # whatever happens
                with suppress(asyncio.CancelledError):
                    await sending_never_ends()

        async def sending_never_ends() -> None:
            await asyncio.get_running_loop().create_future()

        queue = opened(a, sender=send, send_timeout=5.0, lanes=lanes)
        await world.until(lambda: a.leading)
        await put(a, queue, 1, partition="p")
        await put(a, queue, 2, partition="q")
        await world.until(lambda: sent.count("op-1") == 2 and "op-2" in sent, within=300.0)

    test()


# -- what is lost ------------------------------------------------------------------------------------------------------


@simulated
async def test_what_another_tab_sent_long_ago_is_not_lost_with_the_storage(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a, b = join(world, "a"), join(world, "b")
    queue = opened(a)
    await put(a, queue, 1, 2, 3)
    opened(b, endpoint=URL)
    await world.until(lambda: len(receiver.accepted) == 3)
    await world.sleep(60.0)
    world.storage.wipe()
    await world.sleep(60.0)
    told = [event for member in (a, b) for event in member.services.events.recent if isinstance(event, QueueLost)]
    assert told == []
