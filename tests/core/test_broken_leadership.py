"""Faults that were found by trying to break elections: each had a leader, a standby or a watch that went wrong."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kit import join
from tabhelm.errors import DatabaseBlocked
from tabhelm.fencing.epochs import EpochIssuer, Grant
from tabhelm.leadership import Idle, LeaderContext, Leading, Waiting
from tabhelm.messages import Beacon, LeaderNote, LeaderSigns, TabNote, decode, encode
from tabhelm.names import channel_name, engine_lock
from tabhelm.simulated import World


def test_a_claim_that_the_store_could_not_judge_is_put_to_it_again_though_nothing_new_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever claims our resource says the same at each beat. That is no news, but still unverified."""
    with World(1) as world:
        blocked = True

        async def require_current(self: EpochIssuer, grant: Grant) -> None:
            if blocked:
                raise DatabaseBlocked("it hangs for a while")
            await really(self, grant)

        really = EpochIssuer.require_current
        monkeypatch.setattr(EpochIssuer, "require_current", require_current)

        async def main() -> None:
            nonlocal blocked
            old, other = join(world, "old"), join(world, "other")
            contexts: list[LeaderContext] = []

            async def loop(context: LeaderContext) -> None:
                contexts.append(context)
                await context.sleep(1000.0)

            old.lead(loop=loop)
            await world.until(lambda: bool(contexts))
            grant, services = contexts[0].tenure.grant, other.services
            issuer = EpochIssuer(services.database, other.ports.clock, other.ports.entropy, services.memory)
            issuing = issuer.issue(grant.resource, "t-x:c-x", grant.authority, takeovers_seen=0, holds=lambda: True)
            await other.agent.start(issuing)

            stranger = world.agent("stranger")
            ports = world.ports(stranger)
            await stranger.start(ports.locks.acquire(engine_lock("app", 1, "e-stranger")))
            channel = stranger.call(lambda: ports.channels.open(channel_name("app", 1)))
            for number in range(1, 6):
                age = 5.0 * number
                tab = TabNote("t-x", "c-x", 1, "active", True, True, "", (), (grant.resource,), age)
                note = LeaderNote(grant.resource, "t-x", "c-x", grant.domain, grant.epoch + 1, age)
                text = encode(Beacon("e-stranger", number, 5.0, (tab,), (note,)))
                stranger.call(lambda text=text: channel.post(text))
                await world.sleep(5.0)
                assert contexts[0].lost == (number > 3), f"after beat {number}"
                blocked = number < 3

        world.run(main())


def test_who_stops_and_stands_again_waits_for_the_loop_that_outlived_its_grace() -> None:
    """Two loops of one tab at once are worse than none, whichever of its elections started them."""
    with World(2) as world:
        running: list[LeaderContext] = []
        most = 0

        async def deaf(context: LeaderContext) -> None:
            nonlocal most
            running.append(context)
            most = max(most, len(running))
            over = asyncio.Event()
            member.ports.clock.call_later(20.0, over.set)
            while not over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await over.wait()
            running.remove(context)

        async def main() -> None:
            first = member.lead(loop=deaf, grace=1.0)
            await world.until(lambda: bool(running))
            began = world.loop.time()
            for _ in range(2):  # the second of them never leads, and must not let the third forget
                member.call(first.stop)
                await member.agent.start(first.stopped())
                first = member.lead(loop=deaf, grace=1.0)
                await world.sleep(3.0)
                assert first.status == Idle("loop-still-running")
            await world.until(lambda: member.leading, within=20.0)
            assert most == 1 and 19.0 < world.loop.time() - began < 21.0

        member = join(world, "a")
        world.run(main())


def test_many_resources_and_long_names_are_read() -> None:
    names = tuple(f"app:{'x' * 490}{number}" for number in range(2000))
    tab = TabNote("t-x", "c-x", 1, "active", True, True, "", (), names, 1.0, (), tuple((name, 5) for name in names))
    leaders = tuple(LeaderNote(name, "t-x", "c-x", "d", 5, 1.0) for name in names)
    for message in Beacon("e-x", 1, 5.0, (tab,), leaders), LeaderSigns("e-x", 1, 5.0, leaders):
        assert decode(encode(message)) == message


def test_who_leads_very_much_is_heard_and_not_robbed() -> None:
    """A beacon that others do not read is no sign of life."""
    with World(3) as world:

        async def loop(context: LeaderContext) -> None:
            await context.sleep(1000.0)

        async def main() -> None:
            busy, other = join(world, "busy"), join(world, "other")
            names = [f"{'x' * 300}{number}" for number in range(300)]
            elections = [busy.lead(name, loop, max_hold=1000.0) for name in names]
            await world.until(lambda: all(isinstance(each.status, Leading) for each in elections), step=0.5)
            waiting = other.lead(names[0], max_hold=1000.0)
            await world.sleep(70.0)
            assert waiting.status == Waiting(True, 0) and isinstance(elections[0].status, Leading)
            leader = other.call(waiting.leader)
            assert leader is not None and leader.tab_id == "t-busy"
            assert other.services.events.ignored_counts == {}

        world.run(main())
