"""Flushing a queue: whose work is sent, by whom, for how long, and what the receiver's answers do."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kit import Member, join
from tabhelm.errors import AlreadyStanding, InvalidName, InvalidOptions, WrongResource
from tabhelm.leadership import Idle, LeaderContext, Leading
from tabhelm.observe import QueuePaused
from tabhelm.ports import HttpAnswer
from tabhelm.queue import Queue
from tabhelm.queue.flush_run import POLL
from tabhelm.queue.store import RETENTION
from tabhelm.simulated import SimulatedReceiver, World
from tabhelm.simulated.http import HttpRequest

URL = "https://receiver.example/operations"
DAY = 86_400.0
EMPTY = '{"operations":[]}'


def simulated(function: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test in a world of its own, for at most 100 virtual days."""

    def run() -> None:
        with World(1) as world:
            world.run(function(world), limit=100 * DAY)

    run.__name__ = function.__name__
    return run


def opened(member: Member, **options: Any) -> Queue:
    return member.call(lambda: member.tab.queue("m", **{"endpoint": URL, **options}))  # type: ignore[no-any-return]


async def put(member: Member, queue: Queue, *numbers: int) -> None:
    for number in numbers:
        await member.agent.start(queue.enqueue({"n": number}))


def applied(receiver: SimulatedReceiver) -> list[int]:
    return [effect.payload["n"] for effect in receiver.accepted]


async def led(world: World, member: Member) -> None:
    await world.until(lambda: member.leading)
    await world.until(lambda: bool(world.network.requests))


# -- how long an outcome may stay unknown ------------------------------------------------------------------------------


@simulated
async def test_an_outcome_is_unknown_since_the_claim_however_late_it_is_recovered(world: World) -> None:
    receiver = SimulatedReceiver(world, URL, retention=RETENTION)
    a = join(world, "a")
    queue = opened(a)
    await led(world, a)
    world.faults.http_lose_answer = 1.0
    await put(a, queue, 1)
    await world.until(lambda: applied(receiver) == [1])
    a.agent.die()  # with the laptop closed: applied, not settled
    world.faults.http_lose_answer = 0.0
    await world.sleep(31 * DAY)
    b = join(world, "b")
    queue = opened(b)
    await led(world, b)
    await world.sleep(2 * POLL)
    dead = await b.agent.start(queue.dead_letters())
    assert [letter.reason for letter in dead] == ["outcome-unknown"]
    assert applied(receiver) == [1]


@simulated
async def test_the_receivers_retention_is_obeyed_also_by_a_later_leader(world: World) -> None:
    receiver = SimulatedReceiver(world, URL, retention=DAY)
    a = join(world, "a")
    queue = opened(a)
    await put(a, queue, 0)
    await world.until(lambda: applied(receiver) == [0])
    world.faults.http_lose_answer = 1.0
    await put(a, queue, 1)
    await world.until(lambda: applied(receiver) == [0, 1])
    a.agent.die()
    world.faults.http_lose_answer = 0.0
    await world.sleep(2 * DAY)
    b = join(world, "b")
    claims: list[int] = []

    async def counts(context: LeaderContext, queue: Queue) -> None:
        async for batch in queue.batches(context):  # no barrier has told this leader anything yet
            claims.append(len(batch.operations))
            await batch.send(URL)

    queue = opened(b, endpoint=None, loop=counts)
    await world.sleep(2 * POLL)
    assert [letter.reason for letter in await b.agent.start(queue.dead_letters())] == ["outcome-unknown"]
    assert applied(receiver) == [0, 1] and claims == []


@simulated
async def test_what_the_barrier_says_of_the_retention_holds_for_a_batch_claimed_before(world: World) -> None:
    receiver = SimulatedReceiver(world, URL, retention=DAY)

    async def handle(request: HttpRequest) -> HttpAnswer:
        answer = await receiver.handle(request)
        # As from a receiver that shortened its memory meanwhile: nobody has heard of a day so far.
        return answer if advertises else HttpAnswer(answer.status, {}, answer.body)

    advertises = False
    world.network.route(URL, handle)
    a = join(world, "a")
    queue = opened(a)
    await led(world, a)
    world.faults.http_lose_answer = 1.0
    await put(a, queue, 1)
    await world.until(lambda: applied(receiver) == [1])
    a.agent.die()
    world.faults.http_lose_answer = 0.0
    advertises = True
    await world.sleep(2 * DAY)
    b = join(world, "b")

    async def send(context: LeaderContext, queue: Queue) -> None:
        async for batch in queue.batches(context):
            await batch.send(URL)

    queue = opened(b, endpoint=None, loop=send)
    await world.sleep(2 * POLL)
    assert [letter.reason for letter in await b.agent.start(queue.dead_letters())] == ["outcome-unknown"]
    assert applied(receiver) == [1]


# -- whose work, and whose leadership ----------------------------------------------------------------------------------


@simulated
async def test_a_users_work_is_not_sent_in_another_users_session(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a", user_session="user:1")
    queue = opened(a, scope="user:1")
    await led(world, a)
    election = next(iter(a.tab.elections.values()))
    world.network.unreachable.add(URL)
    await put(a, queue, 1)
    a.call(lambda: a.tab.update(user_session="user:12", session_changed=True))
    world.network.unreachable.clear()
    await world.until(lambda: election.status == Idle("session-mismatch"))
    await world.sleep(2 * POLL)
    assert applied(receiver) == []
    a.call(lambda: a.tab.update(user_session="user:1", session_changed=True))
    await world.until(lambda: applied(receiver) == [1])


@pytest.mark.parametrize(
    ("session", "may"), [(None, True), ("user", True), ("user:1:admin", False), ("use", False), ("user:2", False)]
)
def test_a_session_is_the_scope_or_its_first_parts(session: str | None, may: bool) -> None:
    with World(1) as world:
        SimulatedReceiver(world, URL)

        async def main() -> None:
            a = join(world, "a", user_session=session)
            opened(a, scope="user:1")
            election = next(iter(a.tab.elections.values()))
            await world.sleep(5.0)
            assert isinstance(election.status, Leading) if may else election.status == Idle("session-mismatch")

        world.run(main())


@simulated
async def test_a_users_work_is_not_sent_after_that_user_has_signed_out(world: World) -> None:
    # The next user's cookies may come before the app says who that is.
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a", user_session="user:1")
    queue = opened(a, scope="user:1")
    await led(world, a)
    election = next(iter(a.tab.elections.values()))
    a.call(lambda: a.tab.update(user_session=None, session_changed=True))
    await put(a, queue, 1)
    await world.sleep(2 * POLL)
    assert election.status == Idle("session-mismatch") and applied(receiver) == []
    assert a.tab.user_session is None
    a.call(lambda: a.tab.update(user_session="user:1", session_changed=True))
    await world.until(lambda: applied(receiver) == [1])


@simulated
async def test_a_queue_is_flushed_under_its_own_leadership_only(world: World) -> None:
    a = join(world, "a")
    queue = opened(a, flush=False)
    refused: list[str] = []

    async def loop(context: LeaderContext) -> None:
        for attempt in (queue.flush(context, URL), anext(queue.batches(context))):
            try:
                await attempt
            except WrongResource as error:
                refused.append(str(error))
        await context.sleep(1.0)

    a.lead("other", loop)
    await world.until(lambda: len(refused) >= 2)
    assert "app:offline-queue:m" in refused[0] and "app:other" in refused[0]
    with pytest.raises(InvalidName, match="reserved for queues"):
        a.lead("offline-queue")
    with pytest.raises(AlreadyStanding, match="app:other"):
        a.lead("other")
    with pytest.raises(InvalidOptions, match="not by both"):
        opened(a, loop=loop)


@simulated
async def test_a_batch_that_was_left_open_is_sent_again_in_the_same_tenure(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    epochs: set[int | None] = set()
    left: list[float] = []

    async def loop(context: LeaderContext, queue: Queue) -> None:
        epochs.add(context.epoch)
        async for batch in queue.batches(context):
            left.append(batch.operations[0].unknown_since)
            break
        async for batch in queue.batches(context):
            left.append(batch.operations[0].unknown_since)
            await batch.send(URL)

    queue = opened(a, endpoint=None, loop=loop)
    await put(a, queue, 1)
    await world.until(lambda: applied(receiver) == [1])
    assert len(epochs) == 1
    assert left[0] == 0 and left[1] > 0  # for all we know it was sent


# -- answers -----------------------------------------------------------------------------------------------------------


def answering(world: World, respond: Callable[[HttpRequest], HttpAnswer | None]) -> SimulatedReceiver:
    """A receiver behind something that may answer in its place."""
    receiver = SimulatedReceiver(world, URL)

    async def handle(request: HttpRequest) -> HttpAnswer:
        return respond(request) or await receiver.handle(request)

    world.network.route(URL, handle)
    return receiver


def pauses(member: Member) -> int:
    return sum(isinstance(event, QueuePaused) for event in member.services.events.recent)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("barrier", [True, False])
def test_signed_out_pauses_with_one_event_and_is_tried_again_once_in_a_while(status: int, barrier: bool) -> None:
    with World(1) as world:
        signed_in = False

        def respond(request: HttpRequest) -> HttpAnswer | None:
            return None if signed_in or (request.body == EMPTY) is not barrier else HttpAnswer(status, {}, "")

        receiver = answering(world, respond)

        async def main() -> None:
            nonlocal signed_in
            a = join(world, "a")
            queue = opened(a)
            await put(a, queue, *range(5))
            await world.until(lambda: queue.shared.paused == f"HTTP {status}")
            before = len(world.network.requests)
            await put(a, queue, *range(5, 10))
            await world.sleep(10 * POLL + 1)
            tried = world.network.requests[before:]
            assert 9 <= len(tried) <= 10 and pauses(a) == 1
            assert all((request.body or "").count("op_id") == (0 if barrier else 1) for request in tried)
            signed_in = True
            await world.until(lambda: applied(receiver) == list(range(10)), within=2 * POLL)
            assert queue.shared.paused is None and (await a.agent.start(queue.stats())).queued == 0

        world.run(main())


def test_the_barrier_waits_as_long_as_it_is_told() -> None:
    with World(1) as world:
        answering(world, lambda _: HttpAnswer(503, {"retry-after": "600"}, ""))

        async def main() -> None:
            opened(join(world, "a"))
            await world.until(lambda: len(world.network.requests) == 1)
            await world.sleep(590.0)
            assert len(world.network.requests) == 1
            await world.sleep(30.0)
            assert len(world.network.requests) == 2

        world.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        HttpAnswer(200, {"content-type": "text/html"}, "<html>please sign in</html>"),
        HttpAnswer(200, {}, '{"results": []}', redirected=True),
        HttpAnswer(200, {}, "{}"),
        HttpAnswer(204, {}, ""),
    ],
    ids=["html", "redirected", "no-results", "204"],
)
def test_what_is_no_answer_to_an_empty_batch_is_no_barrier(answer: HttpAnswer) -> None:
    with World(1) as world:
        answering(world, lambda _: answer)

        async def main() -> None:
            a = join(world, "a")
            election = a.lead("r", fence=URL)
            await world.until(lambda: len(world.network.requests) >= 3)
            assert a.led == [] and not isinstance(election.status, Leading)

        world.run(main())


# -- two protocols, one queue ------------------------------------------------------------------------------------------


@simulated
async def test_a_leader_of_another_protocol_hears_of_new_work_and_of_signing_in(world: World) -> None:
    signed_in = True

    def respond(request: HttpRequest) -> HttpAnswer | None:
        return None if signed_in or request.body == EMPTY else HttpAnswer(401, {}, "")

    receiver = answering(world, respond)
    old, new = join(world, "old", protocol=1), join(world, "new", protocol=2)
    old_queue = opened(old)
    await led(world, old)
    new_queue = opened(new)
    await put(new, new_queue, 1)
    await world.until(lambda: applied(receiver) == [1], within=POLL / 3)
    signed_in = False
    await put(new, new_queue, 2)
    await world.until(lambda: old_queue.shared.paused is not None, within=POLL / 3)
    signed_in = True
    new.call(new_queue.resume)
    await world.until(lambda: applied(receiver) == [1, 2], within=POLL / 3)
    assert old.leading and not new.leading
