"""A queue over a storage that fails: how soon it is asked again, and what is written down only once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from queue_kit import Ledger, applied, opened, put, reasons, simulated
from test_queue_broken import URL, in_bench
from test_queue_store import Bench, claimed, ids, op

from kit import Member, join
from tabhelm.errors import DatabaseBlocked, DatabaseClosed, DatabaseError
from tabhelm.ports import Clock, HttpAnswer
from tabhelm.queue import Item, Outcome, Queue
from tabhelm.queue.shared import LOOK_EVERY
from tabhelm.simulated import SimulatedReceiver, World
from tabhelm.simulated.http import HttpRequest


class Broken:
    """A database that fails for as long as it is ``broken``, and says that something changed each time."""

    def __init__(self, member: Member, queue: Queue, failure: DatabaseError, *, tells: bool) -> None:
        store: Any = queue.shared.store
        self._database, store._database = store._database, self
        self._member = member
        self._failure = failure
        self._tells = tells
        self.broken = False
        self.attempts = 0

    async def transaction(self, *given: Any, **more: Any) -> Any:
        if not self.broken:
            return await self._database.transaction(*given, **more)
        self.attempts += 1
        await self._member.ports.clock.sleep(0.001)
        if self._tells:
            self._member.ports.clock.call_later(0.001, self._member.services.queues.storage_changed)
        raise self._failure


@pytest.mark.parametrize("tells", [True, False])
def test_a_storage_whose_every_connection_dies_is_opened_ever_more_seldom(tells: bool) -> None:
    @simulated
    async def test(world: World) -> None:
        receiver = SimulatedReceiver(world, URL)
        a, b = join(world, "a"), join(world, "b")
        queue = opened(a, endpoint=URL)
        await put(a, queue, 1)
        await world.until(lambda: applied(receiver) == [1])
        database = Broken(a, queue, DatabaseClosed("the connection died"), tells=tells)
        await world.sleep(2.0)  # until nothing is under way
        database.broken = True
        await put(b, opened(b), 2)
        await world.sleep(300.0)
        looks = 300.0 / LOOK_EVERY if tells else 0  # to see what is lost: each is told of, and wakes the flusher
        assert 5 < database.attempts < 30 + 2 * looks
        assert queue.shared.last_error == "database-closed: the connection died"
        database.broken = False
        await world.until(lambda: applied(receiver) == [1, 2], within=70.0)

    test()


@simulated
async def test_one_connection_that_dies_is_opened_again_at_once(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a = join(world, "a")
    queue = opened(a, endpoint=URL)
    await put(a, queue, 1)
    await world.until(lambda: applied(receiver) == [1])
    await world.sleep(5.0)
    world.storage.close_connections("tabhelm:app")
    began = world.loop.time()
    await put(a, queue, 2)
    await world.until(lambda: applied(receiver) == [1, 2])
    assert world.loop.time() - began < 1.0


@simulated
async def test_a_storage_that_opens_again_is_used_at_once_however_long_it_failed(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    a, b = join(world, "a"), join(world, "b")
    queue = opened(a, endpoint=URL)
    await put(a, queue, 1)
    await world.until(lambda: applied(receiver) == [1])
    database = Broken(a, queue, DatabaseBlocked("another page will not let go"), tells=False)
    await world.sleep(2.0)  # until nothing is under way
    database.broken = True
    await put(b, opened(b), 2)
    await world.until(lambda: database.attempts == 9, within=900.0)
    await world.sleep(1.0)
    assert applied(receiver) == [1]
    database.broken = False
    a.call(a.services.queues.storage_changed)
    await world.until(lambda: applied(receiver) == [1, 2], within=1.0)


@simulated
async def test_a_storage_that_always_says_that_it_is_open_is_not_asked_at_the_speed_of_the_disk(world: World) -> None:
    a = join(world, "a")
    queue = opened(a, sender=Ledger())
    await world.until(lambda: a.leading)
    database = Broken(a, queue, DatabaseBlocked("not now"), tells=True)
    database.broken = True
    a.call(queue.shared.changed)
    await world.sleep(100.0)
    assert 5 < database.attempts <= 401


@in_bench
async def test_what_is_sent_while_the_storage_is_full_leaves_some_of_the_receivers_memory_for_the_way(
    world: World, bench: Bench
) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(1), op(2, "q")])
    claim = claimed(await store.claim(grant, 1))
    await store.settle(grant, claim, {"op-1": Outcome("op-1", "unknown")})

    async def peeked() -> list[str]:
        return [each.op_id for each in await store.peek(grant, 9, skip=(), over=(), retention=1000.0)]

    bench.agent.clock.wall_offset += 850.0
    assert await peeked() == ["op-1", "op-2"]
    bench.agent.clock.wall_offset += 100.0
    assert await peeked() == ["op-2"]


@in_bench
async def test_what_was_done_without_a_claim_is_counted_once_however_often_it_is_told(
    world: World, bench: Bench
) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(n) for n in range(3)])
    done = await store.peek(grant, 2, skip=(), over=())
    await store.delete_done(grant, done)
    for _ in range(2):  # the connection died under the first, which had committed
        await store.note_done(grant, done)
    stats = await store.stats()
    assert (stats.queued, stats.done, stats.bytes) == (1, 2, 1)
    assert ids(await store.claim(grant, 9)) == ["op-2"]


@simulated
async def test_what_cannot_be_sent_from_a_full_storage_stops_nothing_else(world: World) -> None:
    receiver = SimulatedReceiver(world, URL)
    world.network.unreachable.add(URL)
    a, b = join(world, "a"), join(world, "b")
    opened(a, endpoint=URL)
    await world.until(lambda: a.leading)
    queue = opened(b, payloads="clone")
    for n, payload in enumerate(({"n": b"no JSON"}, {"n": 1}, {"n": 2})):
        await b.agent.start(queue.enqueue(payload, op_id=f"op-{n}", partition=f"p{n}"))
    world.faults.quota = 0
    world.network.unreachable.clear()
    await world.until(lambda: applied(receiver) == [1, 2], within=100.0)
    world.faults.quota = None
    await world.sleep(100.0)
    stats = await b.agent.start(queue.stats())
    assert (stats.queued, stats.in_flight, stats.done, stats.dead) == (0, 0, 2, 1)


@pytest.mark.parametrize("own", [True, False], ids=["own", "single"])
def test_what_is_under_way_while_there_is_room_again_is_not_given_back(own: bool) -> None:
    @simulated
    async def test(world: World) -> None:
        a = join(world, "a")
        under_way: set[str] = set()
        sent: list[str] = []
        twice: list[str] = []

        async def sending(op_id: str) -> None:
            sent.append(op_id)
            if op_id in under_way:
                twice.append(op_id)
            under_way.add(op_id)
            await a.ports.clock.sleep(6.0)
            under_way.discard(op_id)

        receiver = SimulatedReceiver(world, URL)

        async def handle(request: HttpRequest) -> HttpAnswer:
            if key := request.headers.get("idempotency-key"):
                await sending(key)
            return await receiver.handle(request)

        world.network.route(URL, handle)
        queue = opened(a)
        await a.agent.start(queue.enqueue_many([Item({"n": n}, f"p{n}", f"op-{n}") for n in range(3)]))
        ledger = Ledger(lambda operation, _: sending(operation.op_id))
        opened(a, **({"sender": ledger, "payloads": "json"} if own else {"endpoint": URL, "mode": "single"}), lanes=2)
        await world.until(lambda: len(sent) == 2)
        world.faults.quota = 0
        await world.until(lambda: len(sent) == 3, within=30.0)  # what became of the first is owed
        world.faults.quota = None
        await world.sleep(300.0)
        assert (len(sent), twice) == (3, [])

    test()


@simulated
async def test_what_is_owed_of_a_claim_is_written_before_more_of_it_is(world: World) -> None:
    """The transaction that pays is refused a few times; a lane settles the next part of the same claim meanwhile."""
    receiver = SimulatedReceiver(world, URL)

    async def handle(request: HttpRequest) -> HttpAnswer:
        await a.ports.clock.sleep(0.7)
        return await receiver.handle(request)

    world.network.unreachable.add(URL)
    a, b = join(world, "a"), join(world, "b")
    waiting = opened(b)
    await put(b, waiting, *range(6), partition="p")
    await put(b, waiting, 6, partition="q")
    queue = opened(a, endpoint=URL, mode="single", lanes=2, batch=6)
    await world.sleep(1.0)
    world.network.route(URL, handle)
    world.network.unreachable.clear()
    await world.until(lambda: len(world.network.requests) >= 2, within=60.0)
    world.faults.quota = 0
    await world.until(lambda: len(receiver.accepted) >= 3, within=60.0)
    store: Any = queue.shared.store
    turn, refusals = store.turn, 2

    async def refused(*given: Any, **more: Any) -> Any:
        nonlocal refusals
        if more.get("deleted") and refusals:
            refusals -= 1
            await a.ports.clock.sleep(1.0)
            raise DatabaseBlocked("not now")
        return await turn(*given, **more)

    store.turn = refused
    world.faults.quota = None
    await world.sleep(200.0)
    assert refusals == 0
    stats = await a.agent.start(queue.stats())
    assert (stats.queued, stats.in_flight, stats.done) == (0, 0, 7)
    receipts = world.storage.dump("tabhelm:app")["receipts"]
    assert sorted(found[1] for each in receipts for found in each["identifiers"]) == [f"op-{n}" for n in range(7)]


@pytest.mark.parametrize("room", [True, False], ids=["room-again", "full-to-the-end"])
def test_what_was_sent_from_a_full_storage_is_not_sent_again_once_the_receiver_forgot_it(room: bool) -> None:
    @simulated
    async def test(world: World) -> None:
        receiver, hide = SimulatedReceiver(world, URL, retention=200.0), True

        async def handle(request: HttpRequest) -> HttpAnswer:
            answer = await receiver.handle(request)
            return HttpAnswer(502, {}, "") if hide and "op-1" in (request.body or "") else answer

        world.network.route(URL, handle)
        world.network.unreachable.add(URL)
        a, b = join(world, "a"), join(world, "b")
        opened(a, endpoint=URL, send_timeout=5.0)
        await world.until(lambda: a.leading)
        queue = opened(b)
        await put(b, queue, 1)
        world.faults.quota = 0
        world.network.unreachable.clear()
        await world.until(lambda: applied(receiver) == [1], within=200.0)
        await world.sleep(0.5)  # until the answer is lost
        world.network.unreachable.add(URL)
        hide = False
        if room:
            await world.sleep(100.0)
            world.faults.quota = None
        await world.sleep(400.0)
        world.network.unreachable.clear()
        await world.sleep(200.0)
        world.faults.quota = None
        await world.sleep(200.0)
        assert applied(receiver) == [1]
        assert list((await reasons(b, queue)).values())[0].startswith("outcome-unknown")

    test()


# -- when to look ------------------------------------------------------------------------------------------------------


@in_bench
async def test_a_suspects_turn_does_not_move_that_of_the_others(world: World, bench: Bench) -> None:
    store, grant = bench.store, await bench.grant()
    await store.enqueue([op(n, f"p{n}") for n in range(5)])
    alone = {"op-3": "p3"}
    order: list[str] = []
    after = ""
    for _ in range(5):
        found = await store.claim(grant, 1, after=after, alone=alone)
        order += ids(found)
        after = found.after
    assert order == ["op-3", "op-0", "op-1", "op-2", "op-4"]


class Creeping:
    """A clock that goes on a little each time that it is read."""

    def __init__(self, clock: Clock, step: float) -> None:
        self._clock = clock
        self._step = step
        self._crept = 0.0

    def monotonic(self) -> float:
        self._crept += self._step
        return self._clock.monotonic() + self._crept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


@pytest.mark.parametrize("step", [0.1, 0.3, 0.5])
def test_what_becomes_due_between_two_looks_at_the_clock_is_not_left_for_half_a_minute(step: float) -> None:
    @simulated
    async def test(world: World) -> None:
        a = join(world, "a")
        at: list[float] = []

        def decide(*_: object) -> Any:
            at.append(world.loop.time())
            return Outcome.retry(after=2.0) if len(at) == 1 else None

        queue = opened(a)
        services: Any = replace(queue.shared.services, clock=Creeping(queue.shared.services.clock, step))  # type: ignore[arg-type]
        queue.shared.services = services
        await put(a, queue, 1)
        opened(a, sender=Ledger(decide), payloads="json")
        await world.until(lambda: len(at) == 2, within=60.0)
        assert at[1] - at[0] < 10.0

    test()
