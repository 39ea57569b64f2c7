"""Whoever gives a question up is rid of it: nothing is said of it any more, and nothing begins for it later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from test_asking import Team
from test_pages import PageSide

from kit import join
from tabhelm.errors import AskTimeout
from tabhelm.leadership.bodies import Address
from tabhelm.messages import Request, Resync
from tabhelm.simulated import World


def simulate(test: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    with World(seed) as world:
        world.run(test(world))  # type: ignore[arg-type]


async def cancelled(task: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


def test_after_a_quick_change_of_leader_nothing_is_said_of_a_cancelled_question() -> None:
    async def main(world: World) -> None:
        asker = join(world, "z")
        election = asker.lead(requires={"nobody-has-it"})
        exchange = asker.services.exchange
        said: list[Request | Resync] = []
        leader = Address("c-1", 5, "d")
        exchange.to_leader = said.append  # type: ignore[method-assign]
        exchange.leader = lambda resource: leader  # type: ignore[method-assign]
        asking = asker.agent.start(election.ask("echo", timeout=86_400.0))
        await world.sleep(5.0)
        leader = Address("c-2", 6, "d")
        asker.call(exchange.asking.look)  # while the word to the first one is yet to be repeated
        await world.sleep(20.0)
        times = len(said)
        await world.sleep(80.0)
        assert len(said) - times == 10  # one chain: every 8 s
        asker.call(asking.cancel)
        await cancelled(asking)
        times = len(said)
        await world.sleep(3_600.0)
        assert len(said) == times

    simulate(main)


def test_a_handler_runs_once_though_its_asker_left_after_a_quick_change_of_leader() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", serve=False)
        await team.leader()
        asker = join(world, "z")
        election = asker.lead(requires={"nobody-has-it"})
        await world.until(lambda: election.leader() is not None)
        asking = asker.agent.start(election.ask("wait", timeout=600.0))
        await world.sleep(2.2)
        team.serves = True
        team.add("b")
        await world.sleep(1.0)
        team.members["a"].call(team.elections["a"].stop)
        await world.until(lambda: len(team.begun) == 1, within=30.0)
        asker.call(asking.cancel)
        await cancelled(asking)
        team.gate = True
        for number in range(40):  # what was remembered of it is forgotten at last
            await world.sleep(30.0)
            await asker.agent.start(election.ask("echo", number))
        assert sum(method == "wait" for _, method, _, _ in team.begun) == 1

    simulate(main, 2)


def test_a_cancelled_question_leaves_nothing_behind() -> None:
    async def main(world: World) -> None:
        asker = join(world, "z")
        election = asker.lead(requires={"nobody-has-it"})
        await world.sleep(1.0)
        before = len(election._listeners)
        for _ in range(5):
            asking = asker.agent.start(election.ask("echo", timeout=600.0))
            await world.sleep(0.1)
            asker.call(asking.cancel)
            await cancelled(asking)
        assert len(election._listeners) == before
        assert asker.services.exchange.asking._open == {}

    simulate(main)


@pytest.mark.parametrize("alone", [True, False], ids=["one engine", "two engines"])
def test_a_leader_that_does_not_serve_yet_does_not_begin_with_what_was_given_up(alone: bool) -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", serve=False)
        await team.leader()
        asker = team.members["a"] if alone else join(world, "z")
        election = team.elections["a"] if alone else asker.lead(requires={"nobody-has-it"})
        await world.until(lambda: election.leader() is not None)
        given_up = asker.agent.start(election.ask("echo", "given up", timeout=600.0))
        kept = asker.agent.start(election.ask("echo", "kept", timeout=600.0))
        await world.sleep(2.0)
        asker.call(given_up.cancel)
        await cancelled(given_up)
        await world.sleep(1.0)
        (served,) = team.members["a"].services.exchange.serving.tenures()

        async def echo(args: Any, call: Any) -> Any:
            team.begun.append(("a", "echo", args, call))
            return args

        team.members["a"].call(lambda: served.serve({"echo": echo}))
        assert await kept == "kept"
        await world.sleep(30.0)
        assert [args for _, _, args, _ in team.begun] == ["kept"]

    simulate(main)


@pytest.mark.parametrize("late", ["question", "timer"])
def test_what_ran_out_of_time_is_not_begun_whatever_is_late(late: str) -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", serve=False)
        await team.leader()
        asker = join(world, "z")
        election = asker.lead(requires={"nobody-has-it"})
        await world.until(lambda: election.leader() is not None)
        (served,) = team.members["a"].services.exchange.serving.tenures()
        if late == "question":
            world.faults.channel_delay = (0.9, 0.9)
        asking = asker.agent.start(election.ask("echo", timeout=0.5))
        await world.sleep(0.1)
        world.faults.channel_delay = (0.001, 0.001)
        if late == "timer":
            (record,) = served._open
            assert record.timer is not None
            record.timer.cancel()
            asker.services.exchange.to_leader = lambda message: None  # type: ignore[method-assign]
        with pytest.raises(AskTimeout):
            await asking
        await world.sleep(0.45)

        async def echo(args: Any, call: Any) -> Any:
            team.begun.append(("a", "echo", args, call))

        team.members["a"].call(lambda: served.serve({"echo": echo}))
        await world.sleep(5.0)
        assert team.begun == []

    simulate(main)


def test_a_question_that_comes_after_the_word_that_it_is_given_up_is_not_begun() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        exchange = team.members[other].services.exchange
        real, said = exchange.to_leader, list[Request | Resync]()
        exchange.to_leader = said.append  # type: ignore[method-assign]
        asking = team.ask(other, "echo", 1, timeout=60.0)
        await world.sleep(0.1)
        team.members[other].call(asking.cancel)
        await cancelled(asking)
        assert len(said) == 2
        for message in reversed(said):
            team.members[other].call(lambda message=message: real(message))
            await world.sleep(0.5)
        assert team.begun == []
        exchange.to_leader = real  # type: ignore[method-assign]
        assert (await team.ask(other, "echo", 2))["by"] == leader

    simulate(main)


# -- a page's ---------------------------------------------------------------------------------------------------------


def test_what_a_page_gives_up_is_withdrawn_and_makes_room() -> None:
    async def main(world: World) -> None:
        page = PageSide(world)
        grant = await page.leads()  # its loop does not serve yet
        for number in range(1, 257):
            page.ask(number, "m", number)
        await world.sleep(0.1)
        asking = page.host.services.exchange.asking
        assert len(asking._open) == 256
        for number in range(1, 256):
            page.say("unask", id=f"q{number}")
        page.say("unask", id="unknown")
        await world.sleep(0.1)
        assert len(asking._open) == 1
        page.ask(300, "m", 300)
        page.say("serve", **grant, methods=["m"], idempotent=[])
        await page.next("asked", 2)
        await world.sleep(60.0)
        assert [each["args"] for each in page.all("asked")] == [256, 300]
        for number in (1, 255):
            assert "error" in await page.answer(number)  # the call is not owed any more

    simulate(main)


def test_a_call_of_a_page_that_is_said_again_when_nobody_waits_any_more_asks_nobody() -> None:
    async def main(world: World) -> None:
        page = PageSide(world)
        grant = await page.leads()
        page.say("serve", **grant, methods=["m"], idempotent=["m"])
        page.ask(1, "m", fresh=False, abandoned=True)
        assert await page.answer(1) == {"value": None}
        await world.sleep(5.0)
        assert page.all("asked") == []

    simulate(main)


def test_giving_up_after_the_handler_has_begun_leaves_it_running() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        asking = team.ask(other, "wait", timeout=60.0)
        await world.until(lambda: len(team.begun) == 1)
        team.members[other].call(asking.cancel)
        await cancelled(asking)
        (served,) = team.members[leader].services.exchange.serving.tenures()
        await world.sleep(1.0)
        assert len(served._open) == 1
        team.gate = True
        await world.until(lambda: not served._open)

    simulate(main)


def test_time_that_runs_out_is_said_as_before() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        _, other = await team.settled()
        with pytest.raises(AskTimeout):
            await team.ask(other, "wait", timeout=2.0)

    simulate(main)
