"""Whose fault a failure is, the receiver's or one operation's; and what is not asked for again without a pause."""

from __future__ import annotations

import gc
from collections import defaultdict

import pytest
from queue_kit import URL, applied, opened, put, reasons, simulated
from test_queue_http import EMPTY, answering, ids, problem

from kit import join
from tabhelm.fencing.http_form import parse_idempotency_key
from tabhelm.leadership import LeaderContext
from tabhelm.leadership.tenure import TokenStream
from tabhelm.ports import HttpAnswer
from tabhelm.queue import Queue
from tabhelm.simulated import SimulatedReceiver, World
from tabhelm.simulated.http import HttpRequest


def names(request: HttpRequest) -> list[str]:
    """The operations in a request, whether it is a batch or a single one."""
    key = request.headers.get("idempotency-key")
    return ids(request) if key is None else [parse_idempotency_key(key)]


async def send_all(context: LeaderContext, queue: Queue) -> None:
    async for batch in queue.batches(context):
        await batch.send(URL)


UNFIT = {
    "400": problem(400, "urn:tabhelm:malformed", "no such resource here"),
    "422": problem(422, "urn:tabhelm:not-enabled"),
    "413": HttpAnswer(413, {}, ""),
}


# -- the barrier -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", list(UNFIT.values()), ids=list(UNFIT))
@pytest.mark.parametrize("own_loop", [False, True], ids=["flush", "batches"])
def test_a_receiver_that_will_not_take_the_barrier_is_asked_again_ever_more_seldom(
    answer: HttpAnswer, own_loop: bool
) -> None:
    @simulated
    async def test(world: World) -> None:
        refusing = True
        receiver = answering(world, lambda request: answer if refusing and request.body == EMPTY else None)
        a = join(world, "a")
        queue = opened(a, **({"loop": send_all} if own_loop else {"endpoint": URL}))
        await put(a, queue, 1)
        await world.until(lambda: bool(world.network.requests))
        await world.sleep(300.0)
        assert 5 < len(world.network.requests) < 20
        assert f"HTTP {answer.status}" in (queue.shared.last_error or "")
        refusing = False
        await world.until(lambda: applied(receiver) == [1], within=70.0)

    test()


# -- one operation, or the receiver ------------------------------------------------------------------------------------


ANSWERS = {
    "500": HttpAnswer(500, {}, ""),
    "502": HttpAnswer(502, {"retry-after": "3"}, "bad gateway"),
    "html": HttpAnswer(200, {"content-type": "text/html"}, "<html>sign in</html>"),
}


@pytest.mark.parametrize("answer", list(ANSWERS.values()), ids=list(ANSWERS))
@pytest.mark.parametrize("mode", ["batch", "single"])
def test_poison_dies_though_all_other_work_waits_behind_it(answer: HttpAnswer, mode: str) -> None:
    """Everything is in one partition: no other send can show that the receiver is well."""

    @simulated
    async def test(world: World) -> None:
        receiver = answering(world, lambda request: answer if "op-2" in names(request) else None)
        a = join(world, "a")
        queue = opened(a, endpoint=URL, mode=mode, max_attempts=5, max_delay=10.0)
        await put(a, queue, *range(1, 6))
        await world.until(lambda: applied(receiver) == [1, 3, 4, 5], within=200.0)
        (reason,) = (await reasons(a, queue)).values()
        assert reason.startswith(f"gave up after 5 attempts: HTTP {answer.status}")
        assert sum("op-2" in names(request) for request in world.network.requests) <= 5 + 4  # and some in batches
        assert not receiver.refused

    test()


@simulated
async def test_poison_dies_in_the_apps_own_loop_too(world: World) -> None:
    receiver = answering(world, lambda request: HttpAnswer(500, {}, "") if "op-1" in names(request) else None)
    a = join(world, "a")
    queue = opened(a, loop=send_all, max_attempts=3)
    await put(a, queue, 1, 2)
    await world.until(lambda: applied(receiver) == [2], within=200.0)
    assert list(await reasons(a, queue)) == ["op-1"]


@simulated
async def test_while_not_even_an_empty_batch_is_taken_no_attempt_counts_and_nothing_else_is_sent(world: World) -> None:
    down = False
    receiver = answering(world, lambda _: HttpAnswer(500, {}, "") if down else None)
    a = join(world, "a")
    queue = opened(a, endpoint=URL, max_attempts=2)
    await put(a, queue, 0)
    await world.until(lambda: applied(receiver) == [0])
    down = True
    await put(a, queue, 1, 2)
    await world.sleep(3600.0)
    sent = [names(request) for request in world.network.requests]
    last = max(at for at, each in enumerate(sent) if each)
    assert len(sent) - last > 50 and last < 10, "an empty batch is enough to see whether it is up again"
    down = False
    await world.until(lambda: applied(receiver) == [0, 1, 2], within=150.0)
    assert await reasons(a, queue) == {}


@pytest.mark.parametrize("down_for", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("mode", ["batch", "single"])
def test_what_takes_the_receiver_down_each_time_dies_and_is_sent_ever_more_seldom(mode: str, down_for: float) -> None:
    """A worker that dies of it and is started anew: an empty batch is taken before, and none right after it."""

    @simulated
    async def test(world: World) -> None:
        up_at, falls = 0.0, []

        def respond(request: HttpRequest) -> HttpAnswer | None:
            nonlocal up_at
            now = world.loop.time()
            if now >= up_at and "op-2" in names(request):
                falls.append(now)
                up_at = now + down_for
            return HttpAnswer(502, {}, "") if now < up_at else None

        receiver = answering(world, respond)
        a = join(world, "a")
        queue = opened(a, endpoint=URL, mode=mode, max_attempts=5)
        await put(a, queue, *range(1, 6))
        await world.until(lambda: applied(receiver) == [1, 3, 4, 5], within=600.0)
        assert list(await reasons(a, queue)) == ["op-2"]
        assert len(falls) <= 5 + 4, "some in batches, before it was found"
        assert len(world.network.requests) < 60

    test()


@simulated
async def test_an_empty_batch_that_is_denied_after_a_failure_pauses_the_queue(world: World) -> None:
    signed_in = True

    def respond(request: HttpRequest) -> HttpAnswer | None:
        nonlocal signed_in
        if signed_in and names(request):
            signed_in = False  # the proxy hides what came of the operation
            return HttpAnswer(500, {}, "")
        return None if signed_in else HttpAnswer(401, {}, "")

    receiver = answering(world, respond)
    a = join(world, "a")
    queue = opened(a, endpoint=URL)
    await world.until(lambda: bool(world.network.requests))
    await put(a, queue, 1)
    await world.until(lambda: queue.shared.paused == "HTTP 401")
    world.network.route(URL, receiver.handle)
    a.call(queue.resume)
    await world.until(lambda: applied(receiver) == [1], within=70.0)


# -- how many at a time ------------------------------------------------------------------------------------------------


@simulated
async def test_a_size_that_was_refused_is_not_tried_again(world: World) -> None:
    refused: list[int] = []

    def respond(request: HttpRequest) -> HttpAnswer | None:
        if len(ids(request)) > 30:
            refused.append(len(ids(request)))
            return HttpAnswer(413, {}, "")
        return None

    receiver = answering(world, respond)
    a = join(world, "a")
    queue = opened(a)
    await a.agent.start(queue.enqueue_many([{"n": n} for n in range(600)]))
    opened(a, endpoint=URL, batch=100)
    await world.until(lambda: applied(receiver) == list(range(600)), within=60.0)
    assert refused == [100, 50]


@simulated
async def test_one_operation_that_the_receiver_will_not_take_does_not_make_batches_small_for_good(world: World) -> None:
    sizes: list[int] = []

    def respond(request: HttpRequest) -> HttpAnswer | None:
        sizes.append(len(ids(request)))
        return UNFIT["400"] if '{"n":7}' in (request.body or "") else None

    receiver = answering(world, respond)
    a = join(world, "a")
    queue = opened(a)
    await a.agent.start(queue.enqueue_many([{"n": n} for n in range(600)]))
    opened(a, endpoint=URL, batch=100)
    await world.until(lambda: applied(receiver) == [n for n in range(600) if n != 7], within=60.0)
    assert sizes.count(100) >= 4
    assert [reason[:29] for reason in (await reasons(a, queue)).values()] == ["HTTP 400 urn:tabhelm:malforme"]


# -- what HTTP cannot carry --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["batch", "single"])
@pytest.mark.parametrize("rejected", ["dead", "block"])
def test_a_clone_goes_over_http_as_json_or_is_refused_by_name(mode: str, rejected: str) -> None:
    """An app that had a sender of its own, and has an endpoint from this release on."""

    @simulated
    async def test(world: World) -> None:
        receiver = SimulatedReceiver(world, URL)
        a = join(world, "a")
        queue = opened(a, payloads="clone")
        payloads = [{"n": 0}, {"n": b"bytes"}, {"n": 2, "deep": [None, True, "ä"]}]
        for n, payload in enumerate(payloads):
            await a.agent.start(queue.enqueue(payload, op_id=f"op-{n}"))
        opened(a, endpoint=URL, mode=mode, rejected=rejected)
        expected = [0, 2] if rejected == "dead" else [0]
        await world.until(lambda: applied(receiver) == expected, within=30.0)
        await world.sleep(100.0)
        assert applied(receiver) == expected
        ((op_id, reason),) = (await reasons(a, queue)).items()
        assert op_id == "op-1" and "JSON" in reason and "payload.n is of type bytes" in reason
        assert all("op-1" not in names(request) for request in world.network.requests)
        assert receiver.accepted[-1].payload == payloads[expected[-1]]

    test()


# -- options and streams -----------------------------------------------------------------------------------------------


@simulated
async def test_a_timeout_of_one_send_changes_nothing_else_of_the_options(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")

    async def loop(context: LeaderContext, queue: Queue) -> None:
        async for batch in queue.batches(context):
            await batch.send(URL, timeout=5.0)

    queue = opened(a, loop=loop, mode="single", headers={"X-App": "regcase"})
    await put(a, queue, 1, 2, 3)
    await world.until(lambda: applied(receiver) == [1, 2, 3])
    assert [names(request) for request in world.network.requests] == [[], ["op-1"], ["op-2"], ["op-3"]]
    assert all(request.headers["x-app"] == "regcase" for request in world.network.requests)
    assert [request.headers.get("idempotency-key") for request in world.network.requests[1:]] != [None] * 3


@simulated
async def test_a_stream_for_each_partition_costs_a_tenure_no_memory_and_keeps_its_order(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = opened(a)
    for again in range(2):
        for n in range(60):
            await put(a, queue, 60 * again + n, partition=f"p{n}")
    opened(a, endpoint=URL, mode="single", lanes=3)
    await world.until(lambda: len(receiver.accepted) == 120, within=60.0)
    marks = defaultdict(list)
    for effect in receiver.accepted:
        marks[effect.token.stream].append(effect.token.seq)
    assert len(marks) == 60 and all(first < second for first, second in marks.values())
    assert not receiver.refused
    assert sum(isinstance(each, TokenStream) for each in gc.get_objects()) < 20
