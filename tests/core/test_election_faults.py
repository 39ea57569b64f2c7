"""Elections that meet faults: storage that fails or hangs, receivers that hang, subscribers and loops that raise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kit import Member, join
from tabhelm.errors import LeadershipLost
from tabhelm.fencing.token import FencingToken, HighWater
from tabhelm.leadership import BackingOff, Election, LeaderContext, Leading, Stopped, Waiting
from tabhelm.observe import LeadershipChanged, LoopFailed, TaskFailed
from tabhelm.simulated import World

URL = "https://receiver.example/operations"


async def hang(*_: Any, **__: Any) -> Any:
    """What never answers."""
    await asyncio.get_running_loop().create_future()


def issue_with(member: Member, issue: Any) -> None:
    """Let this member's epochs be issued by ``issue``."""
    member.services.elections.authorities.known["web-locks"]._issuer.issue = issue  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["stop", "step-down", "offline", "dropped"])
@pytest.mark.parametrize("where", ["confirm", "epoch", "barrier"])
def test_a_grant_is_given_back_at_once_while_it_waits_to_begin(where: str, how: str) -> None:
    with World(1) as world:
        began: list[str] = []

        async def never(*_: Any, **__: Any) -> Any:
            began.append(where)
            await hang()

        world.network.route(URL, never)

        async def main() -> None:
            old = join(world, "a", confirm=never if where == "confirm" else None)
            if where == "epoch":
                issue_with(old, never)
            other = join(world, "b")
            election = old.lead(fence=URL, online=True, engine_patience=10.0, backoff=5.0)
            await world.until(lambda: began == [where])
            other.lead()
            start = world.loop.time()
            match how:
                case "stop":
                    old.call(lambda: election.stop("done"))
                case "step-down":
                    old.call(lambda: election.step_down("enough"))
                case "offline":
                    old.set(online=False)
                case _:
                    old.call(lambda: old.ports.locks.drop("c-a"))
            await world.until(lambda: other.leading, within=30.0)
            assert world.loop.time() - start < 1.0
            assert old.led == []
            if how == "stop":
                assert election.status == Stopped("done")
            if how == "step-down":
                assert isinstance(election.status, BackingOff) and election.status.reason == "enough"

        world.run(main())


def test_a_database_that_hangs_does_not_keep_the_lock() -> None:
    with World(1) as world:

        async def main() -> None:
            old, other = join(world, "a"), join(world, "b")
            issue_with(old, hang)
            election = old.lead()
            await world.sleep(1.0)
            other.lead()
            await world.until(lambda: other.leading, within=12.0)
            states = [e for e in old.services.events.recent if isinstance(e, LeadershipChanged)]
            assert [e.reason for e in states if e.after == "backing-off"][:1] == ["database-blocked"]
            old.call(election.stop)
            await old.agent.start(election.stopped())

        world.run(main())


def test_a_grant_lost_while_it_begins_is_released_before_the_pause() -> None:
    with World(1) as world:

        async def main() -> None:
            old, other = join(world, "a"), join(world, "b")

            async def lost(*_: Any, **__: Any) -> Any:
                raise LeadershipLost("app:r", "newer-epoch")

            issue_with(old, lost)
            election = old.lead(backoff=8.0)
            await world.until(lambda: isinstance(election.status, BackingOff))
            start = world.loop.time()
            other.lead()
            await world.until(lambda: other.leading, within=30.0)
            assert world.loop.time() - start < 1.0

        world.run(main())


@pytest.mark.parametrize("fault", ["denied", "full"])
def test_storage_that_goes_on_failing_is_asked_ever_more_slowly(fault: str) -> None:
    with World(1) as world:
        if fault == "denied":
            world.faults.storage_denied = True
        else:
            world.faults.quota = 0

        async def main() -> None:
            member = join(world, "a")
            election = member.lead()
            await world.sleep(600.0)
            assert member.services.events.counts["leadership-changed"] < 300
            assert isinstance(election.status, (BackingOff, Waiting))

        world.run(main())


def test_after_a_good_while_of_leading_the_pause_is_short_again() -> None:
    with World(1) as world:
        ends: list[float] = []
        lengths = [0.0] * 8 + [60.0, 0.0]

        async def loop(context: LeaderContext) -> None:
            start = world.loop.time()
            if ends:
                pauses.append(start - ends[-1])
            if lengths:
                await context.sleep(lengths.pop(0))
            ends.append(world.loop.time())
            raise ValueError("broken")

        pauses: list[float] = []

        async def main() -> None:
            join(world, "a").lead(loop=loop)
            await world.until(lambda: not lengths, within=300.0)
            assert pauses[7] > 4.0 and pauses[8] < 0.5, pauses

        world.run(main())


def test_a_subscriber_that_raises_is_dropped_and_the_election_goes_on() -> None:
    with World(1) as world:
        seen: list[str] = []

        async def main() -> None:
            member, other = join(world, "a"), join(world, "b")
            election = member.lead()

            def bad(state: object) -> None:
                seen.append(type(state).__name__)
                if isinstance(state, Leading):
                    raise ValueError("a fault of the app")

            member.call(lambda: election.subscribe(bad))
            await world.until(lambda: member.leading)
            other.lead()
            member.call(election.stop)
            await member.agent.start(election.stopped())
            assert seen[-1] == "Leading"
            failed = [e for e in member.services.events.recent if isinstance(e, TaskFailed)]
            assert [e.error for e in failed] == ["ValueError: a fault of the app"]
            await world.until(lambda: other.leading)

        world.run(main())


def test_a_fault_of_the_tab_itself_still_ends_in_stopped_and_frees_the_lock() -> None:
    with World(1) as world:

        async def main() -> None:
            member, other = join(world, "a"), join(world, "b")

            def broken() -> None:
                raise RuntimeError("a fault of ours")

            election = member.lead()
            member.services.elections.roster.set_leading = lambda *_: broken()  # type: ignore[method-assign]
            stopped = await member.agent.start(election.stopped())
            assert stopped == Stopped("internal-error", "RuntimeError: a fault of ours")
            other.lead()
            await world.until(lambda: other.leading)

        world.run(main())


@pytest.mark.parametrize("grace", [5.0, 0.0])
def test_a_loop_that_fails_while_it_is_stopped_is_told(grace: float) -> None:
    with World(1) as world:

        async def loop(context: LeaderContext) -> None:
            try:
                await context.sleep(1e6)
            finally:
                raise ValueError("could not tidy up")

        async def main() -> None:
            member = join(world, "a")
            election = member.lead(loop=loop, grace=grace)
            await world.until(lambda: member.leading)
            await world.sleep(1.0)
            member.call(election.stop)
            await member.agent.start(election.stopped())
            await world.sleep(1.0)
            failures = [e.error for e in member.services.events.recent if isinstance(e, LoopFailed)]
            assert failures == ["ValueError: could not tidy up"]

        world.run(main())


def test_max_hold_ends_a_tenure_only_when_another_tab_could_lead() -> None:
    with World(1) as world:

        async def main() -> None:
            member, other = join(world, "a"), join(world, "b")
            member.lead(max_hold=5.0, online=True)
            await world.sleep(60.0)
            assert len(member.led) == 1
            other.set(online=False)
            other.lead(online=True)
            await world.sleep(30.0)
            assert len(member.led) == 1 and member.leading
            other.set(online=True)
            await world.until(lambda: other.leading, within=6.0)

        world.run(main())


def test_a_check_that_says_no_ends_the_tenure_even_if_the_loop_goes_on() -> None:
    with World(1) as world:
        contexts: list[LeaderContext] = []

        async def deaf(context: LeaderContext) -> None:
            contexts.append(context)
            await asyncio.get_running_loop().create_future()

        async def main() -> None:
            member, other = join(world, "a"), join(world, "b")
            election: Election = member.lead(loop=deaf, backoff=5.0)
            await world.until(lambda: member.leading and bool(contexts))
            rival = other.services.elections.authorities.known["web-locks"]._issuer  # type: ignore[attr-defined]
            await other.agent.start(rival.issue("app:r", "rival", "other", takeovers_seen=0, holds=lambda: True))
            with pytest.raises(LeadershipLost, match="newer-epoch"):
                await member.agent.start(contexts[0].check())
            assert contexts[0].lost
            await member.agent.start(election.wait_for(BackingOff))
            assert isinstance(election.status, BackingOff) and election.status.reason == "newer-epoch"

        world.run(main())


def test_a_stream_keeps_its_one_issuer_when_the_epoch_goes_above_a_mark() -> None:
    with World(1) as world:
        tokens: list[FencingToken] = []

        async def loop(context: LeaderContext) -> None:
            kept = context.tenure.stream("lane-0")
            await context.tenure.raise_above(HighWater(50, 1, "x"))
            tokens.extend((kept.next_token(), context.tenure.stream("lane-0").next_token()))
            await context.sleep(1e6)

        async def main() -> None:
            join(world, "a").lead(loop=loop)
            await world.until(lambda: len(tokens) == 2)
            assert [(token.epoch, token.seq) for token in tokens] == [(51, 1), (51, 2)]

        world.run(main())
