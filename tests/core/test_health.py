"""Health checks and circuit breakers: what makes a leader resign, and that its work stands in the way of neither."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kit import join, one_leader
from tabhelm.errors import CircuitOpen, LeadershipLost
from tabhelm.leadership import Election, LeaderContext, Waiting
from tabhelm.leadership.breaker import CircuitBreaker
from tabhelm.leadership.health import HealthWatch
from tabhelm.observe import LeadershipChanged
from tabhelm.simulated import SimulatedAgent, World


def reasons(member: Any) -> list[str]:
    """Why this member's terms ended."""
    recent = member.services.events.recent
    return [event.reason for event in recent if isinstance(event, LeadershipChanged) and event.before == "leading"]


async def false() -> bool:
    return False


async def never() -> bool:
    await asyncio.Event().wait()
    return True


def broken() -> bool:
    raise ValueError("broken")


async def stubborn() -> bool:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if stop:
                raise


stop: list[bool] = []


@pytest.mark.parametrize(
    ("check", "at"),
    [(lambda: False, 0.0), (false, 0.0), (broken, 0.0), (never, 2.0), (stubborn, 2.0)],
    ids=["false", "async false", "raises", "never answers", "cannot be cancelled"],
)
def test_a_check_that_fails_makes_the_leader_resign(check: Any, at: float) -> None:
    with World(1) as world:
        stop.clear()

        async def main() -> None:
            contexts: list[LeaderContext] = []

            async def loop(context: LeaderContext) -> None:
                contexts.append(context)
                await context.sleep(10_000.0)

            member = join(world, "a")
            member.lead(loop=loop)
            await world.until(lambda: member.leading and bool(contexts))
            start = world.loop.time()
            member.call(lambda: contexts[0].health(check, every=1.0, timeout=2.0))
            await world.until(lambda: not member.leading, within=5.0)
            assert at <= world.loop.time() - start < at + 0.2
            assert reasons(member) == ["unhealthy"] and contexts[0].tenure.health == "failing"
            stop.append(True)

        world.run(main())


@pytest.mark.parametrize("answer", [True, None, "fine", 0])
def test_anything_but_false_is_well(answer: object) -> None:
    with World(2) as world:

        async def main() -> None:
            looked: list[float] = []

            def check() -> object:
                looked.append(world.loop.time())
                return answer

            async def loop(context: LeaderContext) -> None:
                context.health(check)
                await context.sleep(12.0)
                assert context.tenure.health == "ok"
                await context.sleep(10_000.0)

            member = join(world, "a")
            election = member.lead(loop=loop, health_every=5.0)
            await world.until(lambda: member.leading)
            await world.sleep(14.0)
            assert member.leading and len(looked) == 3, "now, and after 5 and 10 seconds"
            member.call(election.step_down)
            await world.sleep(0.01)
            seen = len(looked)
            await world.until(lambda: member.leading)
            member.call(election.stop)
            await world.sleep(20.0)
            assert len(looked) <= seen + 1, "it ends with its tenure"

        world.run(main())


def test_some_failures_in_a_row_may_be_forgiven() -> None:
    with World(3) as world:

        async def main() -> None:
            answers = [False, False, True, False, False, False, True]

            async def loop(context: LeaderContext) -> None:
                context.health(lambda: answers.pop(0), every=1.0, failures=3)
                await context.sleep(10_000.0)

            member = join(world, "a")
            member.lead(loop=loop)
            await world.until(lambda: member.leading)
            start = world.loop.time()
            await world.until(lambda: not member.leading, within=20.0)
            assert 4.9 < world.loop.time() - start < 5.3 and answers == [True]

        world.run(main())


@pytest.mark.parametrize("how", ["step down", "health", "breaker", "offline"])
def test_a_loop_that_exhausted_its_own_pool_delays_nothing(how: str) -> None:
    """A hundred calls wait for the last place of the loop's pool, and its connection says nothing."""
    with World(4) as world:

        async def main() -> None:
            contexts: list[LeaderContext] = []
            pool = asyncio.Semaphore(2)
            answering = {"well": True}

            async def work(context: LeaderContext) -> None:
                async with pool:
                    await asyncio.Event().wait()

            async def loop(context: LeaderContext) -> None:
                contexts.append(context)
                context.health(lambda: answering["well"], every=0.5)
                await asyncio.gather(*(work(context) for _ in range(100)))

            old, other = join(world, "old"), join(world, "other")
            election: Election = old.lead(loop=loop, online=True)
            await world.until(lambda: bool(contexts))
            standby = other.lead()
            await world.until(lambda: isinstance(standby.status, Waiting) and standby.status.standby)
            await world.sleep(2.0)
            start = world.loop.time()
            if how == "step down":
                old.call(election.step_down)
            elif how == "health":
                answering["well"] = False
            elif how == "offline":
                old.set(online=False)
            else:
                breaker = old.call(lambda: contexts[0].breaker("api", failures=1, resign_opens=1))
                with pytest.raises(ValueError):
                    await old.agent.start(breaker.call(failing))
            await one_leader(world, [other], within=5.0)
            assert world.loop.time() - start < (1.0 if how == "health" else 0.2)

        world.run(main())


async def failing() -> None:
    raise ValueError("down")


async def working() -> str:
    return "answer"


def breaker_of(world: World, **limits: Any) -> tuple[SimulatedAgent, CircuitBreaker, list[float]]:
    agent = world.agent("a")
    resigned: list[float] = []
    resign = lambda: resigned.append(world.loop.time())  # noqa: E731
    clock = world.ports(agent).clock
    return agent, agent.call(lambda: CircuitBreaker("api", clock, resign=resign, **limits)), resigned


async def fails(agent: SimulatedAgent, breaker: CircuitBreaker, with_error: type[Exception] = ValueError) -> None:
    with pytest.raises(with_error):
        await agent.start(breaker.call(failing))


def test_a_breaker_opens_tries_once_and_closes() -> None:
    with World(5) as world:
        agent, breaker, _ = breaker_of(world, failures=3, open_for=10.0)

        async def main() -> None:
            for _ in range(2):
                await fails(agent, breaker)
            assert await agent.start(breaker.call(working)) == "answer"
            for _ in range(3):
                assert breaker.state == "closed"
                await fails(agent, breaker)
            assert breaker.state == "open"
            with pytest.raises(CircuitOpen, match="'api' is open.*try again in") as refused:
                await agent.start(breaker.call(working))
            assert 9.9 < refused.value.retry_in <= 10.0
            await world.sleep(10.1)
            assert breaker.state == "half-open"
            await fails(agent, breaker)
            assert breaker.state == "open"
            await world.sleep(10.1)
            answer = asyncio.Event()

            async def slow() -> str:
                await answer.wait()
                return "answer"

            trial = agent.start(breaker.call(slow))
            await world.sleep(0.01)
            await fails(agent, breaker, CircuitOpen)  # one trial at a time
            agent.call(answer.set)
            assert await trial == "answer" and breaker.state == "closed"
            assert breaker.opened == 1, "a trial that failed is the same outage"

        world.run(main())


def test_a_cancelled_call_says_nothing() -> None:
    with World(6) as world:
        agent, breaker, _ = breaker_of(world, failures=1, open_for=5.0)

        async def main() -> None:
            call = agent.start(breaker.call(never))
            await world.sleep(0.01)
            agent.call(call.cancel)
            await world.sleep(0.01)
            assert breaker.state == "closed"
            await fails(agent, breaker)
            await world.sleep(5.1)
            trial = agent.start(breaker.call(never))
            await world.sleep(0.01)
            agent.call(trial.cancel)
            await world.sleep(0.01)
            assert await agent.start(breaker.call(working)) == "answer", "the next one may try"

        world.run(main())


def test_an_answer_to_a_call_from_before_it_opened_does_not_close_it() -> None:
    with World(7) as world:
        agent, breaker, _ = breaker_of(world, failures=1, open_for=5.0)

        async def main() -> None:
            answer = asyncio.Event()

            async def slow() -> None:
                await answer.wait()

            early = agent.start(breaker.call(slow))
            await world.sleep(0.01)
            await fails(agent, breaker)
            agent.call(answer.set)
            await early
            assert breaker.state == "open"

        world.run(main())


def test_who_stays_open_or_opens_often_resigns() -> None:
    with World(8) as world:
        agent, breaker, resigned = breaker_of(world, failures=1, open_for=4.0, resign_after=30.0, resign_opens=3)

        async def main() -> None:
            start = world.loop.time()
            for _ in range(2):
                await fails(agent, breaker)
                await world.sleep(4.1)
                await agent.start(breaker.call(working))
            await world.sleep(60.0)
            assert resigned == [], "it was closed again in time"
            await fails(agent, breaker)
            assert len(resigned) == 1, "its third outage"
            assert world.loop.time() - start > 60.0

        world.run(main())
    with World(9) as world:
        agent, breaker, resigned = breaker_of(world, failures=1, open_for=4.0, resign_after=30.0)

        async def outage() -> None:
            start = world.loop.time()
            await fails(agent, breaker)
            while not resigned:
                await world.sleep(4.1)
                if breaker.state == "half-open":
                    await fails(agent, breaker)
                assert world.loop.time() < start + 40.0
            assert 29.9 < resigned[0] - start < 30.1

        world.run(outage())


def test_nothing_is_watched_for_a_tenure_that_is_over() -> None:
    with World(10) as world:

        async def main() -> None:
            contexts: list[LeaderContext] = []

            async def loop(context: LeaderContext) -> None:
                contexts.append(context)
                await context.sleep(10_000.0)

            member = join(world, "a")
            election = member.lead(loop=loop)
            await world.until(lambda: bool(contexts))
            breaker = member.call(lambda: contexts[0].breaker("api", failures=1, resign_after=30.0))
            member.call(election.stop)
            await world.sleep(1.0)
            looked: list[float] = []
            tenure = contexts[0].tenure
            for late in (
                lambda: contexts[0].health(lambda: looked.append(world.loop.time()), every=1.0),
                lambda: contexts[0].breaker("another"),
            ):
                with pytest.raises(LeadershipLost, match="stopped"):
                    member.call(late)
            watching = dict(tasks=member.services.elections.tasks, clock=member.ports.clock, resign=lambda _: None)
            check = lambda: looked.append(world.loop.time())  # noqa: E731
            member.call(lambda: HealthWatch(tenure, check=check, every=1.0, timeout=1.0, failures=1, **watching))
            await fails(member.agent, breaker)
            await world.sleep(100.0)
            assert looked == [] and breaker._patience is None

        world.run(main())


def test_who_waits_as_told_while_a_trial_hangs_does_not_spin() -> None:
    with World(11) as world:
        agent, breaker, _ = breaker_of(world, failures=1, open_for=10.0)

        async def main() -> None:
            await fails(agent, breaker)
            await world.sleep(10.1)
            agent.start(breaker.call(never))
            refused = 0
            end = world.loop.time() + 30.0
            while world.loop.time() < end:
                with pytest.raises(CircuitOpen) as circuit:
                    await agent.start(breaker.call(working))
                refused += 1
                assert refused <= 31
                await world.sleep(circuit.value.retry_in)

        world.run(main())
