"""Ask the leader, in simulated browsers: an answer, an error that says what is known, or the end of the time given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kit import Member, join, one_leader
from tabhelm.errors import (
    AskRefused,
    AskTimeout,
    ElectionStopped,
    HandlerFailed,
    LeaderChanged,
    NoHandler,
    NoLeader,
    NotCloneable,
    TooManyCalls,
)
from tabhelm.leadership import Election, LeaderContext
from tabhelm.leadership.serving import Call
from tabhelm.simulated import World

Handler = Callable[[Any, Call], Awaitable[Any]]


class Team:
    """Tabs with an engine each that stand for one resource and serve the same handlers."""

    def __init__(self, world: World, *names: str, serve: bool = True, idempotent: tuple[str, ...] = ()) -> None:
        self.world = world
        self.begun: list[tuple[str, str, Any, Call]] = []
        """Tab, method, arguments and call of every handler that began."""
        self.gate = False
        """Whether ``wait`` may return."""
        self.serves = serve
        self.idempotent = idempotent
        self.members: dict[str, Member] = {}
        self.elections: dict[str, Election] = {}
        for name in names:
            self.add(name)

    def add(self, name: str, **facts: Any) -> Member:
        member = join(self.world, name, **facts)
        self.members[name] = member
        self.elections[name] = member.lead(loop=self.loop(name))
        return member

    def loop(self, name: str) -> Callable[[LeaderContext], Awaitable[None]]:
        async def run(context: LeaderContext) -> None:
            async def echo(args: Any, call: Call) -> Any:
                self.begun.append((name, "echo", args, call))
                return {"by": name, "args": args}

            async def wait(args: Any, call: Call) -> Any:
                self.begun.append((name, "wait", args, call))
                while not self.gate:
                    await self.members[name].ports.clock.sleep(0.1)
                return name

            async def fail(args: Any, call: Call) -> Any:
                raise KeyError("no such case")

            async def refuse(args: Any, call: Call) -> Any:
                if call.tab_id != "t-a":
                    call.refuse(f"not for {call.tab_id} {call.version} {sorted(call.capabilities)}")
                return "for you"

            async def lossy(args: Any, call: Call) -> Any:
                return {"items": [1, {"at": {1, 2}}]}

            if self.serves:
                handlers: dict[str, Handler] = {"echo": echo, "wait": wait, "fail": fail, "refuse": refuse}
                context.serve({**handlers, "lossy": lossy}, idempotent=self.idempotent)
            while True:
                await context.sleep(1.0)

        return run

    def ask(self, name: str, method: str, args: Any = None, **options: Any) -> asyncio.Task[Any]:
        return self.members[name].agent.start(self.elections[name].ask(method, args, **options))

    async def leader(self, *names: str) -> str:
        members = [self.members[name] for name in names or self.members]
        found = await one_leader(self.world, members)
        return next(name for name, member in self.members.items() if member is found)

    async def settled(self) -> tuple[str, str]:
        """Wait until one leads and all know it; the leader, and one that does not lead."""
        name = await self.leader()
        connection = f"c-{name}"

        def known() -> bool:
            seen = [election.leader() for election in self.elections.values()]
            return all(info is not None and info.connection_id == connection for info in seen)

        await self.world.until(known)
        return name, next(other for other in self.members if other != name)


async def raises(kind: type[BaseException], task: asyncio.Task[Any]) -> Any:
    with pytest.raises(kind) as caught:
        await task
    return caught.value


def simulate(test: Callable[[World], Awaitable[None]], seed: int = 1, **faults: Any) -> World:
    with World(seed) as world:
        for name, value in faults.items():
            setattr(world.faults, name, value)
        world.run(test(world))  # type: ignore[arg-type]
        return world


def test_the_leader_answers_itself_and_others_and_sees_who_asks() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        team.add("c", version="7.1", capabilities=frozenset({"x", "y"}))
        leader, _ = await team.settled()
        for name in team.members:
            began = world.loop.time()
            args = {"force": True, "text": "é\u2028\U0001f600", "n": [1, 2.5, None]}
            assert await team.ask(name, "echo", args, idempotency_key=f"k-{name}") == {"by": leader, "args": args}
            assert world.loop.time() - began < 0.1
        call = team.begun[-1][3]
        assert (call.tab_id, call.version, call.capabilities) == ("t-c", "7.1", frozenset({"x", "y"}))
        assert call.idempotency_key == "k-c"
        assert len(team.begun) == 3

    simulate(main)


def test_the_handlers_own_error_arrives_and_a_refusal_with_its_reason() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        for name in (leader, other):
            failed = await raises(HandlerFailed, team.ask(name, "fail"))
            assert (failed.name, failed.detail) == ("KeyError", "'no such case'")
            lossy = await raises(HandlerFailed, team.ask(name, "lossy"))
            assert lossy.name == "NotCloneable"
            assert "the answer of 'lossy'.items[1].at" in lossy.detail
            missing = await raises(NoHandler, team.ask(name, "nothing"))
            assert "echo, fail, lossy, refuse, wait" in str(missing)
        assert await team.ask("a", "refuse") == "for you"
        assert str(await raises(AskRefused, team.ask("b", "refuse"))) == "not for t-b  []"

    simulate(main)


def test_what_cannot_be_sent_is_refused_at_the_asker_by_its_place() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        _, other = await team.settled()
        error = await raises(NotCloneable, team.ask(other, "echo", {"rows": [1, {"at": object()}]}))
        assert "args.rows[1].at" in str(error)
        assert "100,000" in str(await raises(NotCloneable, team.ask(other, "echo", "x" * 100_001)))
        assert "100,000" in str(await raises(NotCloneable, team.ask(other, "echo", "é" * 20_000)))
        largest = '"' * 49_985
        assert (await team.ask(other, "echo", largest))["args"] == largest
        for bad in ({"timeout": 0}, {"timeout": float("nan")}, {"timeout": "5"}, {"idempotency_key": ""}):
            await raises(ValueError, team.ask(other, "echo", **bad))
        await raises(ValueError, team.ask(other, "x" * 513))
        assert len(team.begun) == 1

    simulate(main)


def test_between_two_leaders_a_question_waits_for_the_next_one() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        team.members[leader].agent.die()
        await world.until(lambda: team.elections[other].leader() is None, step=0.0005)
        assert (await team.ask(other, "echo", 1, timeout=30.0))["by"] == other
        team.members[other].call(lambda: team.elections[other].step_down())
        assert (await team.ask(other, "echo", 2, timeout=30.0))["by"] == other

    simulate(main)


def test_a_question_that_a_dead_leader_may_have_heard_is_not_put_to_the_next_one_unless_that_is_harmless() -> None:
    async def main(world: World) -> None:
        for idempotent in ((), ("echo",)):
            team = Team(world, *(f"{name}{len(idempotent)}" for name in "ab"), idempotent=idempotent)
            leader, other = await team.settled()
            team.members[leader].agent.die()
            asking = team.ask(other, "echo", 1, timeout=30.0)  # put to the dead one: nothing is known of its death yet
            if idempotent:
                assert (await asking)["by"] == other
            else:
                assert (await raises(LeaderChanged, asking)).outcome == "unknown"
            team.members[other].agent.die()

    simulate(main)


def test_nobody_leads_in_time() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a")
        await team.leader()
        bystander = join(world, "z")
        election = bystander.lead(requires={"nobody-has-it"})
        await world.until(lambda: election.leader() is not None)
        team.members["a"].agent.die()
        await world.until(lambda: election.leader() is None)
        began = world.loop.time()
        await raises(NoLeader, bystander.agent.start(election.ask("echo", timeout=3.0)))
        assert 2.9 < world.loop.time() - began < 3.1

    simulate(main)


def test_a_leader_dies_in_the_middle_and_its_asker_is_told_at_once() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b", "c")
        leader, other = await team.settled()
        asking = team.ask(other, "wait", timeout=60.0)
        await world.until(lambda: len(team.begun) == 1)
        await world.sleep(0.05)
        team.members[leader].agent.die()
        began = world.loop.time()
        changed = await raises(LeaderChanged, asking)
        assert changed.outcome == "unknown"
        assert world.loop.time() - began < 1.0
        await world.sleep(10.0)
        assert len(team.begun) == 1  # nobody does it twice

    simulate(main)


def test_an_idempotent_handler_is_asked_again_on_the_next_leader_with_the_same_key() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b", "c", idempotent=("wait",))
        leader, other = await team.settled()
        asking = team.ask(other, "wait", 42, timeout=60.0)
        await world.until(lambda: len(team.begun) == 1)
        await world.sleep(0.05)
        team.members.pop(leader).agent.die()
        await world.until(lambda: len(team.begun) == 2)
        team.gate = True
        second = await team.leader()
        assert await asking == second
        (_, _, _, one), (_, _, args, two) = team.begun
        assert one.idempotency_key == two.idempotency_key
        assert args == 42

    simulate(main)


def test_a_leader_that_steps_down_says_so_and_its_late_answer_is_not_believed() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        asking = team.ask(other, "wait", timeout=60.0)
        await world.until(lambda: len(team.begun) == 1)
        await world.sleep(0.05)
        team.members[leader].call(team.elections[leader].step_down)
        team.gate = True
        began = world.loop.time()
        assert (await raises(LeaderChanged, asking)).outcome == "unknown"
        assert world.loop.time() - began < 0.5

    simulate(main)


def test_a_question_that_the_leader_had_not_begun_goes_to_the_next_one() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b", serve=False)
        leader, other = await team.settled()
        asking = team.ask(other, "echo", 1, timeout=60.0)  # the leader does not serve yet: it waits there
        await world.sleep(1.0)
        assert team.begun == [] and not asking.done()
        team.serves = True
        team.members[leader].call(team.elections[leader].step_down)
        answer = await asking
        assert answer["args"] == 1
        assert len(team.begun) == 1

    simulate(main)


def test_a_loop_that_never_serves_costs_a_timeout_and_one_that_serves_late_answers() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b", serve=False)
        leader, other = await team.settled()
        await raises(AskTimeout, team.ask(other, "echo", timeout=2.0))
        late = team.ask(other, "echo", "late", timeout=20.0)
        await world.sleep(1.0)
        tenure = team.members[leader].services.exchange.serving.tenures()[0]

        async def echo(args: Any, call: Call) -> Any:
            return args

        team.members[leader].call(lambda: tenure.serve({"echo": echo}))
        assert await late == "late"

    simulate(main)


def test_a_hung_leader_costs_its_asker_no_more_than_its_timeout() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        team.members[leader].agent.hang(30.0)
        began = world.loop.time()
        late = await raises(AskTimeout, team.ask(other, "echo", timeout=5.0))
        assert late.outcome == "unknown"
        assert 4.9 < world.loop.time() - began < 5.2
        await world.sleep(60.0)  # what the hung one does with the question when it wakes, nobody waits for
        assert team.members[other].services.exchange.asking._open == {}

    simulate(main)


def test_a_frozen_leader_changes() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        asking = team.ask(other, "wait", timeout=60.0)
        await world.until(lambda: len(team.begun) == 1)
        await world.sleep(0.05)
        team.members[leader].freeze()
        assert (await raises(LeaderChanged, asking)).outcome == "unknown"
        await team.leader(other)
        assert (await team.ask(other, "echo"))["by"] == other
        team.members[leader].thaw()
        await world.sleep(5.0)
        assert (await team.ask(leader, "echo"))["by"] == other

    simulate(main)


@pytest.mark.parametrize("seed", range(8))
def test_lost_and_late_messages_cost_time_never_a_second_beginning(seed: int) -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b", "c")
        await team.settled()
        world.faults.channel_loss = 0.4
        answers = [team.ask(name, "echo", n, timeout=120.0) for n, name in enumerate(["a", "b", "c"] * 5)]
        got = [(await answer)["args"] for answer in answers]
        assert got == list(range(15))
        assert sorted(args for _, _, args, _ in team.begun) == list(range(15))
        world.faults.channel_loss = 0.0

    simulate(main, seed, channel_delay=(0.0, 1.2))


def test_doubled_messages_begin_nothing_twice() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        hub = world.channel_hub
        post = hub.post

        def twice(name: str, value: object, sender: Any = None) -> None:
            post(name, value, sender)
            post(name, value, sender)

        hub.post = twice  # type: ignore[method-assign]
        _, other = await team.settled()
        assert [(await team.ask(other, "echo", n))["args"] for n in range(10)] == list(range(10))
        assert len(team.begun) == 10

    simulate(main)


def test_open_questions_are_bounded_here_and_at_the_leader() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b", "c")
        leader, _ = await team.settled()
        first, second = [name for name in team.members if name != leader]
        mine = [team.ask(first, "wait", n, timeout=100.0) for n in range(256)]
        await world.until(lambda: len(team.begun) == 256)
        assert "256 questions of this engine" in str(await raises(TooManyCalls, team.ask(first, "echo")))
        assert "are open" in str(await raises(TooManyCalls, team.ask(second, "echo")))
        team.gate = True
        for task in mine:
            assert await task == leader
        assert (await team.ask(first, "echo"))["by"] == leader

    simulate(main)


def test_a_tab_that_leaves_or_an_election_that_stops_ends_its_questions() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        _, other = await team.settled()
        asking = team.ask(other, "wait", timeout=100.0)
        await world.until(lambda: len(team.begun) == 1)
        member = team.members[other]
        member.call(team.elections[other].stop)
        await raises(ElectionStopped, asking)
        await raises(ElectionStopped, team.ask(other, "echo"))
        election = member.lead("r")
        again = member.agent.start(election.ask("wait", timeout=100.0))
        await world.until(lambda: len(team.begun) == 2)
        await member.agent.start(member.tab.leave("left"))
        await raises(ElectionStopped, again)
        assert member.services.exchange.asking._open == {}

    simulate(main)


def test_cancelling_stops_the_waiting_and_leaves_nothing_behind() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        asking = team.ask(other, "wait", timeout=100.0)
        await world.until(lambda: len(team.begun) == 1)
        asking.cancel()
        await raises(asyncio.CancelledError, asking)
        assert team.members[other].services.exchange.asking._open == {}
        team.gate = True
        assert (await team.ask(other, "echo"))["by"] == leader

    simulate(main)
