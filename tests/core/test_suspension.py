"""An engine inside a page: what is said and closed inside ``freeze`` and ``pagehide``, and how it goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kit import APP, Member, join, one_leader
from tabhelm.election import LeadershipPolicy, Takeover
from tabhelm.errors import DatabaseClosed, InvalidPolicy, NotJoined
from tabhelm.fencing.schema import OPERATIONS
from tabhelm.host.engine import EngineHost
from tabhelm.leadership import Leading
from tabhelm.messages import Beacon, decode
from tabhelm.names import channel_name, engine_lock
from tabhelm.ports import LockSnapshot, Transaction
from tabhelm.ports.database import Record
from tabhelm.presence import Identity
from tabhelm.simulated import World


def listen(world: World) -> list[Beacon]:
    """Everything that is said on the channel from now on."""
    heard: list[Beacon] = []
    channel = world.ports(world.agent("listener")).channels.open(channel_name(APP, 1))

    def hear(data: object) -> None:
        message = decode(data)
        assert isinstance(message, Beacon)
        heard.append(message)

    channel.subscribe(hear)
    return heard


def known(member: Member) -> set[str]:
    return {tab.tab_id for tab in member.services.roster.tabs(member.ports.clock.monotonic())}


def hide(member: Member) -> None:
    """What a page's ``pagehide`` does: the desk lets go, then the engine is suspended, all in one step."""
    for owner in (member.tab.identity.connection_id, ""):
        member.call(member.ports.locks.drop, owner)
    member.set(lifecycle="frozen")
    member.call(member.services.suspend)
    member.agent.stop()
    member.agent.evict = member.agent.die


def show(member: Member, connection: str) -> None:
    """``pageshow`` with ``persisted``."""
    member.agent.evict = None
    member.agent.go()
    member.agent.start(member.ports.locks.acquire(engine_lock(APP, 1, member.services.engine_id)))
    identity = Identity(member.tab.identity.tab_id, connection, member.tab.identity.generation + 1)
    member.call(lambda: member.ports.locks.admit(connection))
    member.call(member.services.resume)
    member.call(lambda: member.tab.rejoin(identity))
    member.set(lifecycle="active")


def test_a_frozen_page_says_so_before_it_stands_still_and_that_it_leads_no_more() -> None:
    with World(1) as world:
        heard = listen(world)

        async def main() -> None:
            member = join(world, "a", in_page=True)
            member.lead()
            await one_leader(world, [member])
            await world.until(lambda: bool(heard and heard[-1].leaders))
            member.call(lambda: member.ports.locks.drop("c-a"))
            member.set(lifecycle="frozen")
            member.agent.freeze()
            await world.sleep(1.0)

        world.run(main())
        assert heard[-1].tabs[0].lifecycle == "frozen"
        assert heard[-1].leaders == ()


def test_a_hidden_page_promises_less_and_speaks_as_often_as_it_can() -> None:
    with World(1) as world:
        heard = listen(world)

        async def main() -> None:
            member = join(world, "a", in_page=True)
            member.lead()
            await one_leader(world, [member])
            await world.sleep(1.0)
            assert heard[-1].next < 60
            member.set(lifecycle="hidden", visible=False)
            await world.sleep(1.0)
            heard.clear()
            await world.sleep(30.0)

        world.run(main())
        assert {beacon.next for beacon in heard} == {60.0}
        assert len(heard) >= 5


def test_a_cached_page_keeps_nothing_open_and_goes_on_under_its_new_identity() -> None:
    with World(1) as world:

        async def main() -> None:
            a, b = join(world, "a", in_page=True), join(world, "b", in_page=True)
            election = a.lead()
            await one_leader(world, [a])
            b.lead()
            await world.until(lambda: known(b) == {"t-a", "t-b"})
            queue = a.call(lambda: a.tab.queue("mutations"))
            hide(a)
            late = a.agent.start(queue.enqueue({"n": 1}))
            assert known(a) == {"t-a"}
            await one_leader(world, [b], within=1.0)
            await world.until(lambda: known(b) == {"t-b"}, within=1.0)
            await world.sleep(100.0)
            assert a.agent.alive, "neither its locks nor its channels got it evicted"
            show(a, "c-a2")
            await world.until(lambda: known(b) == known(a) == {"t-a", "t-b"}, within=2.0)
            assert await late, "the store opened again, and the operation is durable"
            b.agent.die()
            await world.until(lambda: isinstance(election.status, Leading))
            leader = election.leader()
            assert leader is not None and leader.connection_id == "c-a2"

        world.run(main())


def test_suspend_and_resume_may_come_twice() -> None:
    with World(1) as world:
        heard = listen(world)

        async def main() -> None:
            a = join(world, "a", in_page=True)
            await world.sleep(1.0)
            for step in (a.services.suspend, a.services.suspend, a.services.resume, a.services.resume):
                a.call(step)
            a.call(lambda: a.tab.rejoin(a.tab.identity))
            await world.sleep(1.0)
            await a.agent.start(a.tab.leave("done"))
            with pytest.raises(NotJoined):
                a.call(lambda: a.tab.rejoin(a.tab.identity))
            a.call(a.services.suspend)
            await a.agent.start(a.services.close())
            a.call(a.services.resume)
            await world.sleep(60.0)

        world.run(main())
        assert [bool(beacon.tabs) for beacon in heard] == [True, False, True, False]


class FakeBridge:
    def __init__(self, host: str) -> None:
        self.info = json.dumps(
            {
                "app": APP,
                "protocol": 1,
                "engine": "e",
                "from": "plain",
                "bootMs": 1,
                "fallbackReason": None,
                "host": host,
            }
        )
        self.posted: list[tuple[str, dict[str, Any]]] = []

    def post(self, session: str, text: str) -> None:
        self.posted.append((session, json.loads(text)))


HELLO = {"type": "hello", "tab": "t", "session": "s", "generation": 1, "lifecycle": "active"}


@pytest.mark.parametrize("host", ["window", "shared"])
def test_an_engine_whose_last_page_went_is_suspended_until_a_page_says_hello(host: str) -> None:
    with World(1) as world:
        heard = listen(world)

        async def main() -> None:
            agent = world.agent("page")
            engine = agent.call(lambda: EngineHost(FakeBridge(host), world.ports(agent)))

            def deliver(session: str, message: dict[str, Any]) -> None:
                agent.call(engine.deliver, session, json.dumps(message))

            deliver("s", HELLO)
            await world.sleep(1.0)
            heard.clear()
            deliver("s", {"type": "gone", "reason": "pagehide"})
            deliver("", {"type": "suspend"})
            agent.stop()
            agent.evict = agent.die
            await world.sleep(10.0)
            assert [beacon.tabs for beacon in heard] == [()]
            agent.evict = None
            agent.go()
            deliver("", {"type": "resume"})
            deliver("s2", {**HELLO, "session": "s2", "generation": 2})
            await world.sleep(1.0)
            assert [tab.connection for tab in heard[-1].tabs] == ["s2"]

        world.run(main())


def test_takeover_in_policies() -> None:
    assert LeadershipPolicy().takeover == Takeover.fenced(60.0)
    assert LeadershipPolicy.from_wire({"takeoverAfterMs": "never"}).takeover is Takeover.never
    assert LeadershipPolicy.from_wire({"takeoverAfterMs": 10_000}).takeover == Takeover.fenced(after=10.0)
    for bad in (9_999, -1, "soon", True, [], float("inf"), float("nan")):
        with pytest.raises(InvalidPolicy, match="takeoverAfterMs"):
            LeadershipPolicy.from_wire({"takeoverAfterMs": bad})
    with pytest.raises(InvalidPolicy, match="takeover"):
        Takeover.fenced(9.0)
    with pytest.raises(InvalidPolicy, match=r"Takeover\.never"):
        LeadershipPolicy(takeover=60.0)  # type: ignore[arg-type]


def suspend_in_the_midst(member: Member) -> None:
    """A worker is suspended with its only page, which is in the cache, before it read a word of that."""
    for channel in (member.services.channel, member.services.queue_channel):
        member.call(channel.suspend)  # messages to a worker evict no page
    member.agent.stop()
    member.agent.evict = member.agent.die


def test_what_a_suspended_engine_kept_is_freed_by_looking_once() -> None:
    """The machine was so busy that the engine stood still with its page before it read that page's goodbye."""
    with World(1) as world:

        async def main() -> None:
            a, b = join(world, "a"), join(world, "b")
            a.lead()
            await one_leader(world, [a])
            election = b.lead(takeover=Takeover.never)
            await world.until(lambda: "app:v1:leader:r" in [name for name in b.ports.locks.manager.queues])  # type: ignore[attr-defined]
            looked = 0
            query = b.ports.locks.query

            async def counted() -> LockSnapshot:
                nonlocal looked
                looked += 1
                return await query()

            b.ports.locks.query = counted  # type: ignore[method-assign]
            await world.sleep(30.0)
            assert looked == 0, "a leader that speaks is left alone"
            suspend_in_the_midst(a)
            began = world.loop.time()
            await world.until(lambda: isinstance(election.status, Leading))
            assert world.loop.time() - began < 15.0, "two beats and a look at the clock"
            await world.sleep(200.0)
            assert looked == 1

        world.run(main())


def test_a_silent_leader_of_what_we_do_not_stand_for_is_left_in_the_cache() -> None:
    with World(1) as world:

        async def main() -> None:
            a, b = join(world, "a"), join(world, "b")
            a.lead()
            b.lead("other")
            await world.sleep(1.0)
            suspend_in_the_midst(a)
            await world.sleep(100.0)
            assert a.agent.alive

        world.run(main())


@pytest.mark.parametrize("seed", range(60))
def test_calls_keep_their_order_over_a_suspension_that_cuts_one_off(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            a = join(world, "a", in_page=True)
            queue = a.call(lambda: a.tab.queue("mutations", flush=False))
            await a.agent.start(queue.enqueue({"n": "first of all"}))
            calls = [a.agent.start(queue.enqueue({"n": number})) for number in range(3)]
            await world.sleep(0.002 * (seed % 4))  # some have begun, perhaps
            a.call(a.services.database.suspend)
            calls += [a.agent.start(queue.enqueue({"n": number})) for number in range(3, 6)]
            await world.sleep(0.001 * (seed % 3))
            a.call(a.services.resume)
            calls += [a.agent.start(queue.enqueue({"n": number})) for number in range(6, 8)]
            stored = [await call for call in calls]
            lines = await a.agent.start(a.services.database.transaction([OPERATIONS], "readonly", _line))
            assert [each["op_id"] for each in lines][1:] == stored

        world.run(main())


async def _line(tx: Transaction) -> list[Record]:
    """All operations, in the order in which they will be sent."""
    return await tx.get_all(OPERATIONS)


def test_calls_keep_their_order_when_suspended_again_before_all_have_woken() -> None:
    """Every moment in which the second suspension can come."""
    for steps in range(40):
        with World(steps) as world:
            _suspended_twice(world, steps)


def _suspended_twice(world: World, steps: int) -> None:
    async def main() -> None:
        a = join(world, "a", in_page=True)
        queue = a.call(lambda: a.tab.queue("mutations", flush=False))
        await a.agent.start(queue.enqueue({"n": "first of all"}))
        database = a.services.database
        a.call(database.suspend)
        calls = [a.agent.start(queue.enqueue({"n": number})) for number in range(6)]
        await world.sleep(0.01)
        a.call(a.services.resume)
        for _ in range(steps):
            await asyncio.sleep(0)
        a.call(database.suspend)
        a.call(a.services.resume)
        stored = [await call for call in calls]
        lines = await a.agent.start(database.transaction([OPERATIONS], "readonly", _line))
        assert [each["op_id"] for each in lines][1:] == stored

    world.run(main())


def test_a_database_that_is_closed_for_good_while_suspended_stays_so() -> None:
    with World(1) as world:

        async def main() -> None:
            database = join(world, "a", in_page=True).services.database
            database.suspend()
            waiting = asyncio.ensure_future(database.transaction([OPERATIONS], "readonly", _line))
            await asyncio.sleep(0)
            database.close()
            database.resume()
            for asked in (waiting, database.transaction([OPERATIONS], "readonly", _line)):
                with pytest.raises(DatabaseClosed):
                    await asked

        world.run(main())
