"""Edges of asking that random schedules seldom meet, each made by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from test_asking import Team, raises
from test_publishing import Choir

from kit import APP, join
from tabhelm.errors import AskRefused, AskTimeout, HandlerFailed, LeaderChanged, LeadershipLost, NotCloneable
from tabhelm.leadership import LeaderContext
from tabhelm.leadership.bodies import Address
from tabhelm.leadership.serving import Call
from tabhelm.messages import Accepted, Ignored, Reply, Request, Resync, StateNote, decode, encode
from tabhelm.names import channel_name
from tabhelm.simulated import World


def simulate(test: Callable[[World], Awaitable[None]]) -> None:
    with World(1) as world:
        world.run(test(world))  # type: ignore[arg-type]


def test_a_handler_that_ends_just_as_its_lock_is_lost_is_not_believed() -> None:
    async def main(world: World) -> None:
        member = join(world, "a")

        async def loop(context: LeaderContext) -> None:
            async def late(args: Any, call: Call) -> Any:
                member.ports.locks.drop("c-a")  # as the lock desk does, before any Python is told
                return "too late"

            context.serve({"late": late})
            await context.sleep(1e6)

        election = member.lead(loop=loop)
        await world.until(lambda: member.leading)
        changed = await raises(LeaderChanged, member.agent.start(election.ask("late")))
        assert changed.outcome == "unknown"

    simulate(main)


def test_an_asker_is_told_at_once_though_nobody_follows() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a")
        leader = await team.leader()
        bystander = join(world, "z")
        election = bystander.lead(requires={"nobody-has-it"})
        await world.until(lambda: election.leader() is not None)
        asking = bystander.agent.start(election.ask("wait", timeout=60.0))
        await world.until(lambda: len(team.begun) == 1)
        await world.sleep(0.1)
        team.members[leader].agent.die()
        began = world.loop.time()
        assert (await raises(LeaderChanged, asking)).outcome == "unknown"
        assert world.loop.time() - began < 0.5

    simulate(main)


def test_a_leader_that_is_only_late_goes_on_with_it() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        asking = team.ask(other, "wait", timeout=100.0)
        await world.until(lambda: len(team.begun) == 1)
        await world.sleep(0.1)
        world.faults.channel_loss = 1.0
        await world.until(lambda: team.elections[other].leader() is None)  # four beats were lost
        await world.sleep(6.0)
        assert not asking.done()
        world.faults.channel_loss = 0.0
        team.gate = True
        assert await asking == leader
        assert len(team.begun) == 1

    simulate(main)


def test_a_question_never_goes_back_to_an_older_leader() -> None:
    async def main(world: World) -> None:
        asker = join(world, "z")
        election = asker.lead(requires={"nobody-has-it"})
        exchange = asker.services.exchange
        said: list[Request | Resync] = []
        leader: list[Address | None] = [Address("c-new", 6, "d")]
        exchange.to_leader = said.append  # type: ignore[method-assign]
        exchange.leader = lambda resource: leader[0]  # type: ignore[method-assign]
        asking = asker.agent.start(election.ask("echo", timeout=5.0))
        await world.sleep(0.1)
        for following in (None, Address("c-old", 5, "d"), Address("c-wiped", 1, "another domain")):
            leader[0] = following
            asker.call(exchange.asking.look)
            await world.sleep(0.1)
        await raises(AskTimeout, asking)
        assert all(isinstance(message, Request) for message in said)
        asked = dict.fromkeys((message.leader, getattr(message, "fresh", None)) for message in said)
        assert list(asked) == [("c-new", True), ("c-wiped", False)]

    simulate(main)


def test_an_answer_goes_to_the_engine_that_asked_last() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, _ = await team.settled()
        epoch = team.members[leader].services.exchange.serving.tenures()[0].epoch
        heard: list[Accepted | Reply] = []
        spy = world.agent("spy")
        ports = world.ports(spy)

        def hear(text: str) -> None:
            try:
                message = decode(text)
            except Ignored:
                return
            if isinstance(message, (Accepted, Reply)):
                heard.append(message)

        spy.call(lambda: ports.channels.open(channel_name(APP, 1)).subscribe(hear))
        about = ("q-1", "app:r", f"c-{leader}", epoch, "wait", "1", "t", "c", "", (), "k", 30.0)
        for sender, fresh in (("e-old", True), ("e-new", False)):  # the page's engine died, another says it again
            world.channel_hub.post(channel_name(APP, 1), encode(Request(sender, *about, fresh)))
            await world.sleep(1.0)
        team.gate = True
        await world.sleep(1.0)
        assert [(type(message), message.to) for message in heard] == [
            (Accepted, "e-old"),
            (Accepted, "e-new"),
            (Reply, "e-new"),
        ]
        assert len(team.begun) == 1

    simulate(main)


def test_a_question_that_nobody_could_read_is_refused_at_once_and_harms_nothing() -> None:
    async def main(world: World) -> None:
        words = frozenset(f"cap.{number:04d}." + "x" * 80 for number in range(900))
        asker = join(world, "z", capabilities=words)
        election = asker.lead(requires={"nobody-has-it"})
        await raises(NotCloneable, asker.agent.start(election.ask("echo", '"' * 49_000, timeout=30.0)))
        team = Team(world, "a")
        leader = await team.leader()
        answer = await asker.agent.start(election.ask("echo", 1))
        assert answer == {"by": leader, "args": 1}
        assert asker.services.exchange.asking._open == {}

    simulate(main)


def test_what_another_leader_said_to_a_handler_is_its_own_trouble() -> None:
    async def main(world: World) -> None:
        member = join(world, "a")
        errors = [AskRefused("no, said the other one"), LeadershipLost("app:other", "step-down")]

        async def loop(context: LeaderContext) -> None:
            async def fail(args: Any, call: Call) -> Any:
                raise errors[args]

            async def refuse(args: Any, call: Call) -> Any:
                call.refuse("not you")

            context.serve({"fail": fail, "refuse": refuse})
            await context.sleep(1e6)

        election = member.lead(loop=loop)
        await world.until(lambda: member.leading)
        for number, error in enumerate(errors):
            failed = await raises(HandlerFailed, member.agent.start(election.ask("fail", number)))
            assert (failed.name, failed.handler_code) == (type(error).__name__, error.code)
        assert str(await raises(AskRefused, member.agent.start(election.ask("refuse")))) == "not you"

    simulate(main)


def test_a_follower_never_goes_back() -> None:
    async def main(world: World) -> None:
        choir = Choir(world, "a", "b")
        leader = await choir.leader()
        other = next(name for name in choir.members if name != leader)
        await world.sleep(1.0)
        for value in (1, 2, 3):
            choir.publish(leader, value)
        await choir.all_see(3)
        follower = choir.members[other].services.exchange.publishing.follow("app:r")
        at = follower.at
        assert at is not None

        def say(**changes: Any) -> None:
            given: dict[str, Any] = {"leader": at.leader, "epoch": at.epoch, "number": 2, "value": '"old"', **changes}
            note = StateNote("e-x", "app:r", tab="t-x", **given)
            world.channel_hub.post(channel_name(APP, 1), encode(note))

        say()
        await world.sleep(0.1)
        assert [state.value for state in choir.seen[other]] == [1, 2, 3]
        # The roster believes again in a leader of before: not what it published.
        exchange = choir.members[other].services.exchange
        real = exchange.leader
        exchange.leader = lambda resource: Address("c-old", at.epoch - 1, at.domain)  # type: ignore[method-assign]
        say(leader="c-old", epoch=at.epoch - 1, number=9)
        await world.sleep(0.1)
        assert [state.value for state in choir.seen[other]] == [1, 2, 3]
        assert exchange.events.ignored_counts["stale-state"] == 1
        exchange.leader = real  # type: ignore[method-assign]
        choir.publish(leader, 4)
        await choir.all_see(4)

    simulate(main)
