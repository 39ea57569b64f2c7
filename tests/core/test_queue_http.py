"""HTTP senders: single mode, the app's own headers, poison over HTTP, and answers that are no success."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from queue_kit import URL, applied, opened, put, reasons, simulated

from kit import Member, join
from tabhelm.fencing.http_form import parse_idempotency_key, parse_token_header
from tabhelm.ports import HttpAnswer
from tabhelm.simulated import SimulatedReceiver, World
from tabhelm.simulated.http import HttpRequest

EMPTY = '{"operations":[]}'


def answering(world: World, respond: Callable[[HttpRequest], HttpAnswer | None]) -> SimulatedReceiver:
    """A receiver behind something that may answer in its place."""
    receiver = SimulatedReceiver(world, URL)

    async def handle(request: HttpRequest) -> HttpAnswer:
        return respond(request) or await receiver.handle(request)

    world.network.route(URL, handle)
    return receiver


def ids(request: HttpRequest) -> list[str]:
    body = json.loads(request.body or "{}")
    return [each["op_id"] for each in body.get("operations", [])]


def problem(status: int, kind: str, detail: str = "", **headers: str) -> HttpAnswer:
    return HttpAnswer(status, headers, json.dumps({"type": kind, "detail": detail}))


# -- single mode -------------------------------------------------------------------------------------------------------


@simulated
async def test_single_mode_sends_one_payload_a_request_on_a_stream_for_each_partition(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = opened(a, endpoint=URL, mode="single", lanes=3)
    for n in range(12):
        await put(a, queue, n, partition=f"p{n % 3}")
    await world.until(lambda: len(receiver.accepted) == 12)
    singles = [request for request in world.network.requests if request.body != EMPTY]
    assert len(singles) == 12
    for request in singles:
        token, key = parse_token_header(request.headers["fencing-token"]), request.headers["idempotency-key"]
        number = int(parse_idempotency_key(key)[3:])
        assert json.loads(request.body or "") == {"n": number} and token.stream == f"p{number % 3}"
    for partition in range(3):
        assert [n for n in applied(receiver) if n % 3 == partition] == list(range(partition, 12, 3))


@simulated
async def test_the_answers_to_a_single_operation(world: World) -> None:
    answers: dict[str, list[HttpAnswer]] = {
        '"op-1"': [problem(422, "urn:tabhelm:rejected", "no such case")],
        '"op-2"': [problem(422, "urn:tabhelm:key-reused")],
        '"op-3"': [problem(503, "urn:tabhelm:retry", **{"retry-after": "20"})],
        '"op-4"': [
            HttpAnswer(500, {}, ""),
            HttpAnswer(200, {}, '{"results": [{"op_id": "x", "status": "committed"}]}'),
        ],
    }
    at: dict[str, list[float]] = {}

    def respond(request: HttpRequest) -> HttpAnswer | None:
        key = request.headers.get("idempotency-key", "")
        at.setdefault(key, []).append(world.loop.time())
        return answers[key].pop(0) if answers.get(key) else None

    receiver = answering(world, respond)
    a = join(world, "a")
    queue = opened(a, endpoint=URL, mode="single")
    for n in range(1, 6):
        await put(a, queue, n, partition=f"p{n}")
    await world.until(lambda: sorted(applied(receiver)) == [3, 4, 5], within=90.0)
    assert await reasons(a, queue) == {
        "op-1": "HTTP 422 urn:tabhelm:rejected no such case",
        "op-2": "HTTP 422 urn:tabhelm:key-reused",
    }
    assert at['"op-3"'][1] - at['"op-3"'][0] >= 20.0 and len(at['"op-4"']) == 3
    assert at['"op-5"'][0] < at['"op-3"'][1]  # what must wait holds back nothing but its partition


# -- the app's own headers ---------------------------------------------------------------------------------------------


@simulated
async def test_the_apps_headers_are_asked_for_before_each_request(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    asked = 0

    async def headers() -> Mapping[str, str]:
        nonlocal asked
        asked += 1
        await a.ports.clock.sleep(0.1)
        return {"Authorization": f"Bearer {asked}", "X-App": "regcase"}

    queue = opened(a, endpoint=URL, headers=headers)
    await put(a, queue, 1)
    await world.until(lambda: applied(receiver) == [1])
    await put(a, queue, 2)
    await world.until(lambda: applied(receiver) == [1, 2])
    assert [request.headers["authorization"] for request in world.network.requests] == [
        f"Bearer {n}" for n in range(1, asked + 1)
    ]
    assert all(request.headers["x-app"] == "regcase" for request in world.network.requests)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: {"Fencing-Token": "mine"}, "tabhelm's own"),
        (lambda: {"content-TYPE": "text/plain"}, "tabhelm's own"),
        (lambda: {"Authorization": 7}, "texts"),
        (lambda: {"Authorization": "Bearer x\n"}, "the value of 'Authorization' holds what no header can"),
        (lambda: {"X-Name": "✓"}, "the value of 'X-Name'"),
        (lambda: {"X Name": "x"}, "'X Name' is not valid"),
        (lambda: None, "mapping"),
    ],
)
def test_headers_that_cannot_be_had_send_nothing_and_are_asked_for_again(wrong: Callable[[], Any], said: str) -> None:
    with World(1) as world:
        receiver = SimulatedReceiver(world, URL)

        async def main() -> None:
            a = join(world, "a")
            broken = True
            queue = opened(a, endpoint=URL, headers=lambda: wrong() if broken else {})
            await put(a, queue, 1)
            await world.until(lambda: queue.shared.last_error is not None)
            assert said in (queue.shared.last_error or "")
            await world.sleep(5.0)
            assert world.network.requests == []
            broken = False
            await world.until(lambda: applied(receiver) == [1], within=70.0)

        world.run(main())


@simulated
async def test_headers_that_never_come_are_given_up(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    slow: list[Awaitable[None]] = []

    async def headers() -> Mapping[str, str]:
        slow.append(a.ports.clock.sleep(1000.0 if len(slow) < 1 else 0.0))
        await slow[-1]
        return {}

    queue = opened(a, endpoint=URL, headers=headers, send_timeout=3.0)
    await put(a, queue, 1)
    await world.until(lambda: applied(receiver) == [1], within=30.0)


# -- poison, and answers that are no success ---------------------------------------------------------------------------


@simulated
async def test_one_operation_that_the_server_chokes_on_stops_no_other_and_dies_at_last(world: World) -> None:
    def respond(request: HttpRequest) -> HttpAnswer | None:
        return HttpAnswer(500, {}, "") if "op-50" in ids(request) else None

    receiver = answering(world, respond)
    a = join(world, "a")
    queue = opened(a, flush=False)
    for n in range(100):
        await put(a, queue, n, partition=f"p{n % 20:02}")
    opened(a, endpoint=URL, max_attempts=5)
    others = [n for n in range(100) if n % 20 != 10 or n < 50]
    await world.until(lambda: sorted(applied(receiver)) == others, within=30.0)
    number = 100
    while not await reasons(a, queue):  # work goes on, which shows that the receiver is well
        await put(a, queue, number)
        number += 1
        await world.sleep(2.0)
        assert number < 200
    assert await reasons(a, queue) == {"op-50": "gave up after 5 attempts: HTTP 500"}
    await world.until(lambda: {70, 90} <= set(applied(receiver)), within=30.0)


@simulated
async def test_a_receiver_that_is_down_for_hours_kills_nothing(world: World) -> None:
    down = False
    # Empty batches fail as well: where they are taken, what fails all the same counts as the operation's own failure.
    receiver = answering(world, lambda _: HttpAnswer(500, {}, "") if down else None)
    a = join(world, "a")
    queue = opened(a, endpoint=URL)
    await world.until(lambda: bool(receiver.tokens))
    down = True
    for n in range(30):
        await put(a, queue, n, partition=f"p{n % 10}")
    await world.sleep(4 * 3600.0)
    assert await reasons(a, queue) == {}
    assert len(world.network.requests) < 600
    down = False
    await world.until(lambda: sorted(applied(receiver)) == list(range(30)), within=300.0)


@pytest.mark.parametrize(
    "answer",
    [
        HttpAnswer(500, {}, ""),
        HttpAnswer(200, {"content-type": "text/html"}, "<html>sign in</html>"),
        HttpAnswer(200, {}, '{"results": []}', redirected=True),
        HttpAnswer(204, {}, ""),
        HttpAnswer(502, {"retry-after": "30"}, "bad gateway"),
    ],
    ids=["500", "captive-portal", "redirected", "204", "502"],
)
def test_an_answer_that_is_no_success_keeps_the_operation_as_it_is(answer: HttpAnswer) -> None:
    """A peer removes before it sends, takes any answer for success, and loses a body that was read once."""
    with World(1) as world:
        count = 0

        def respond(request: HttpRequest) -> HttpAnswer | None:
            nonlocal count
            count += request.body != EMPTY
            return answer if request.body != EMPTY and count <= 3 else None

        receiver = answering(world, respond)

        async def main() -> None:
            a = join(world, "a")
            queue = opened(a, endpoint=URL)
            began = world.loop.time()
            await put(a, queue, 1, 2)
            await world.until(lambda: applied(receiver) == [1, 2], within=300.0)
            if answer.status == 502:
                assert world.loop.time() - began >= 90.0
            stats = await a.agent.start(queue.stats())
            assert (stats.queued, stats.dead) == (0, 0)

        world.run(main())


async def counted(member: Member, queue: Any) -> int:
    return int((await member.agent.start(queue.stats())).done)


@simulated
async def test_the_rate_is_what_was_committed_in_the_last_ten_seconds(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = opened(a, endpoint=URL)
    assert (await a.agent.start(queue.stats())).rate == 0.0
    await put(a, queue, *range(20))
    await world.until(lambda: len(receiver.accepted) == 20)
    await world.sleep(1.0)
    stats = await a.agent.start(queue.stats())
    assert stats.rate == 2.0 and stats.done == 20
    await world.sleep(11.0)
    assert (await a.agent.start(queue.stats())).rate == 0.0
