"""What a person is told of a queue that sends nothing: where, why, and what to look at; once."""

from __future__ import annotations

import json

import pytest
from queue_kit import URL, Ledger, applied, opened, put, simulated
from test_queue_http import EMPTY, answering, ids, problem

from kit import Member, join
from tabhelm.observe import QueuePaused, QueueTrouble
from tabhelm.ports import HttpAnswer
from tabhelm.queue import Outcome
from tabhelm.queue.trouble import Trouble
from tabhelm.simulated import World
from tabhelm.simulated.http import HttpRequest

ELSEWHERE = "https://other.example/operations"
LASTING = {
    "404": (HttpAnswer(404, {}, ""), "HTTP 404"),
    "405": (problem(405, "about:blank", "use GET"), "HTTP 405 use GET"),
    "html": (HttpAnswer(200, {}, "<html>"), "HTTP 200 whose body is not the contract's"),
    "redirect": (
        HttpAnswer(200, {}, '{"results": []}', redirected=True, url=f"{ELSEWHERE}?code=secret"),
        f"HTTP 200, redirected to {ELSEWHERE}): use that address",
    ),
    "400": (
        problem(400, "urn:tabhelm:malformed", "no such resource"),
        "HTTP 400 urn:tabhelm:malformed no such resource",
    ),
}


def told(member: Member) -> list[str | None]:
    return [event.detail for event in member.services.events.recent if isinstance(event, QueueTrouble)]


@pytest.mark.parametrize(("answer", "said"), list(LASTING.values()), ids=list(LASTING))
def test_a_wrong_endpoint_is_told_once_until_it_works(answer: HttpAnswer, said: str) -> None:
    @simulated
    async def test(world: World) -> None:
        wrong = True
        receiver = answering(world, lambda _: answer if wrong else None)
        a = join(world, "a")
        queue = opened(a, endpoint=URL)
        await put(a, queue, 1)
        await world.until(lambda: bool(told(a)))
        assert len(world.network.requests) == 1
        await world.sleep(600.0)
        (detail,) = told(a)
        assert len(world.network.requests) > 5 and detail == queue.shared.last_error
        assert detail is not None and URL in detail and said in detail and "secret" not in detail
        wrong = False
        await world.until(lambda: applied(receiver) == [1], within=70.0)
        assert told(a) == [detail, None] and queue.shared.last_error is None

    test()


@simulated
async def test_each_reason_is_told_once_though_they_alternate(world: World) -> None:
    answers = [HttpAnswer(404, {}, ""), HttpAnswer(502, {}, "")]
    answering(world, lambda _: answers[len(world.network.requests) % 2])
    a = join(world, "a")
    opened(a, endpoint=URL)
    await world.sleep(1800.0)
    details = told(a)
    assert len(world.network.requests) > 20
    assert sorted(str(detail).partition("(")[2][:8] for detail in details) == ["HTTP 404", "HTTP 502"]


@pytest.mark.parametrize("status", [429, 502, 503])
@pytest.mark.parametrize("times", [2, 3])
def test_what_may_pass_is_told_when_it_came_three_times_in_a_row(status: int, times: int) -> None:
    @simulated
    async def test(world: World) -> None:
        receiver = answering(
            world, lambda _: HttpAnswer(status, {}, "") if len(world.network.requests) <= times else None
        )
        a = join(world, "a")
        queue = opened(a, endpoint=URL, lanes=4)
        await put(a, queue, 1)
        await world.until(lambda: applied(receiver) == [1], within=70.0)
        assert len(told(a)) == (0 if times < 3 else 2)

    test()


@pytest.mark.parametrize("offline", [False, True])
def test_no_answer_is_told_unless_the_browser_is_offline(offline: bool) -> None:
    @simulated
    async def test(world: World) -> None:
        # Nobody listens there.
        a = join(world, "a")
        a.agent.online = not offline  # the engine; its page believes that it is online
        queue = opened(a, endpoint=URL)
        await world.sleep(600.0)
        assert len(told(a)) == (0 if offline else 1)
        assert "no answer" in (queue.shared.last_error or "") and URL in (queue.shared.last_error or "")
        assert "does a receiver listen there?" in (queue.shared.last_error or "")

    test()


def test_no_more_reasons_are_told_than_anybody_reads() -> None:
    heard: list[str | None] = []
    trouble = Trouble(heard.append)
    for n in range(50):
        trouble.failed(f"request {n} failed", lasting=True)
    assert len(heard) == 8
    trouble.over()
    trouble.over()
    trouble.failed("again", lasting=True)
    assert heard[8:] == [None, "again"]


# -- paused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (problem(403, "urn:tabhelm:not-owner", "not yours"), "HTTP 403 urn:tabhelm:not-owner not yours"),
        (HttpAnswer(401, {}, '{"detail": "the session has ended"}'), "HTTP 401 the session has ended"),
        (HttpAnswer(401, {}, '{"type": "about:blank", "title": "Sign in"}'), "HTTP 401 Sign in"),
        (HttpAnswer(401, {}, '{"detail": "two\\nlines"}'), "HTTP 401 two lines"),
        (HttpAnswer(401, {}, json.dumps({"detail": "x" * 5_000})), f"HTTP 401 {'x' * 400}"),
        (HttpAnswer(401, {}, '{"detail": ["x"]}'), "HTTP 401"),
        (HttpAnswer(401, {}, "<html>"), "HTTP 401"),
    ],
)
def test_a_pause_tells_what_the_answer_says(answer: HttpAnswer, reason: str) -> None:
    @simulated
    async def test(world: World) -> None:
        answering(world, lambda _: answer)
        a = join(world, "a")
        queue = opened(a, endpoint=URL)
        await world.until(lambda: queue.shared.paused is not None)
        assert queue.shared.paused == reason and told(a) == []
        assert [each.reason for each in a.services.events.recent if isinstance(each, QueuePaused)] == [reason]

    test()


# -- one operation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["batch", "single"])
def test_an_operation_that_is_to_come_again_is_named_for_as_long_as_it_is(mode: str) -> None:
    @simulated
    async def test(world: World) -> None:
        stuck = True

        def respond(request: HttpRequest) -> HttpAnswer | None:
            if not stuck or request.body == EMPTY:
                return None
            if mode == "single":
                mine = request.headers["idempotency-key"] == '"op-1"'
                return problem(503, "urn:tabhelm:retry", "its log says why") if mine else None
            names = ids(request)
            if "op-1" not in names:
                return None
            results = [{"op_id": names[0], "status": "retry", "detail": "its log says why"}]
            results += [{"op_id": name, "status": "skipped"} for name in names[1:]]
            return HttpAnswer(200, {}, json.dumps({"results": results}))

        receiver = answering(world, respond)
        a = join(world, "a")
        queue = opened(a, endpoint=URL, mode=mode, max_attempts=1000)
        await put(a, queue, 1, 2, partition="p")
        said = "operation op-1: retry: its log says why"
        await world.until(lambda: queue.shared.last_error == said)
        await put(a, queue, 3, partition="q")
        await world.until(lambda: applied(receiver) == [3])
        await world.sleep(300.0)
        assert queue.shared.last_error == said and told(a) == []
        stuck = False
        await world.until(lambda: applied(receiver) == [3, 1, 2], within=70.0)
        await world.until(lambda: queue.shared.last_error is None)

    test()


@simulated
async def test_what_died_is_not_said_to_come_again(world: World) -> None:
    a = join(world, "a")
    queue = opened(a, sender=Ledger(lambda operation, sending: Outcome.retry()), max_attempts=2)
    await put(a, queue, 1)
    await world.until(lambda: queue.shared.last_error == "operation op-1: retry")
    await world.until(lambda: queue.shared.last_error is None)
    assert (await a.agent.start(queue.stats())).dead == 1
