"""What makes an election look anew: each event once, and a burst of them as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kit import Member, join, one_leader
from tabhelm.leadership import BackingOff, Election, Idle, Leading, Waiting
from tabhelm.messages import Beacon, TabNote, encode
from tabhelm.names import channel_name, engine_lock
from tabhelm.simulated import World


@dataclass
class Stage:
    """A leader, a standby and one that watches."""

    world: World
    leader: Member
    standby: Member
    watcher: Member
    elections: dict[str, Election]

    def of(self, member: Member) -> Election:
        return self.elections[member.agent.name]


async def set_up(world: World, **policy: Any) -> Stage:
    members = [join(world, f"m{n}", user_session="user", version="1.0") for n in range(3)]
    elections = {member.agent.name: member.lead(**policy) for member in members}
    leader = await one_leader(world, members)
    rest = [member for member in members if member is not leader]

    def settled() -> bool:
        states = [elections[member.agent.name].status for member in rest]
        return sorted(isinstance(each, Waiting) and each.standby for each in states) == [False, True]

    await world.until(settled)
    await world.sleep(2.0)
    standby = next(m for m in rest if elections[m.agent.name].status.standby)  # type: ignore[union-attr]
    watcher = next(m for m in rest if m is not standby)
    return Stage(world, leader, standby, watcher, elections)


def asks(stage: Stage, member: Member) -> Callable[[], bool]:
    return lambda: getattr(stage.of(member).status, "standby", False) is True


async def startup(stage: Stage) -> None:
    stage.leader.call(stage.of(stage.leader).stop)
    stage.standby.call(stage.of(stage.standby).stop)
    await one_leader(stage.world, [stage.watcher], within=2.0)
    fourth = join(stage.world, "m4")
    fourth.lead()
    await stage.world.until(
        lambda: any(isinstance(e.status, Waiting) for e in fourth.tab.elections.values()), within=0.5
    )


async def snapshot_changed(stage: Stage) -> None:
    """A beacon says that the first in line is hidden: who watches is first, and asks."""
    stage.standby.set(lifecycle="hidden", visible=False)
    await stage.world.until(asks(stage, stage.watcher), within=0.5)


async def leader_expires(stage: Stage) -> None:
    """The one that leads, and the one in line, say nothing any more: whoever watches asks, too."""
    stage.leader.agent.stop()
    stage.standby.agent.stop()
    await stage.world.until(asks(stage, stage.watcher), within=200.0)


async def lifecycle(stage: Stage) -> None:
    stage.standby.set(lifecycle="frozen")
    await stage.world.until(lambda: stage.of(stage.standby).status == Idle("frozen"), within=0.1)
    await stage.world.until(asks(stage, stage.watcher), within=0.5)


async def visible(stage: Stage) -> None:
    member = stage.watcher
    member.set(lifecycle="hidden", visible=False)
    await stage.world.until(lambda: stage.of(member).status == Idle("hidden"), within=0.1)
    member.set(lifecycle="active", visible=True)
    await stage.world.until(lambda: isinstance(stage.of(member).status, Waiting), within=0.1)


async def online(stage: Stage) -> None:
    member = stage.watcher
    member.set(online=False)
    await stage.world.until(lambda: stage.of(member).status == Idle("offline"), within=0.1)
    member.set(online=True)
    await stage.world.until(lambda: isinstance(stage.of(member).status, Waiting), within=0.1)


async def session(stage: Stage) -> None:
    member = stage.watcher
    member.call(lambda: member.tab.update(user_session=None, session_changed=True))
    await stage.world.until(lambda: stage.of(member).status == Idle("no-session"), within=0.5)
    member.call(lambda: member.tab.update(user_session="bob", session_changed=True))
    await stage.world.until(lambda: isinstance(stage.of(member).status, Waiting), within=0.5)


async def capabilities(stage: Stage) -> None:
    member = stage.watcher
    member.call(lambda: member.tab.update(capabilities=["big"]))
    await stage.world.until(asks(stage, member), within=0.5)


async def update(stage: Stage) -> None:
    """A tab of a newer version is here: older ones leave the field."""
    newer = join(stage.world, "newer", version="1.1")
    newer.lead(newest=True)
    await one_leader(stage.world, [newer], within=1.0)
    await stage.world.until(lambda: stage.of(stage.watcher).status == Idle("incompatible"), within=0.5)


async def backoff_expires(stage: Stage) -> None:
    member = stage.leader
    member.call(stage.of(member).step_down)
    await stage.world.until(lambda: isinstance(stage.of(member).status, BackingOff), within=0.2)
    await stage.world.until(lambda: isinstance(stage.of(member).status, Waiting), within=0.5)


async def steps_down(stage: Stage) -> None:
    stage.leader.call(stage.of(stage.leader).step_down)
    await one_leader(stage.world, [stage.standby], within=0.5)
    await stage.world.until(lambda: asks(stage, stage.watcher)() or asks(stage, stage.leader)(), within=1.0)


TRIGGERS: list[tuple[Any, dict[str, Any]]] = [
    (startup, {}),
    (snapshot_changed, {}),
    (leader_expires, {}),
    (lifecycle, {}),
    (visible, {"visible": "require"}),
    (online, {"online": True}),
    (session, {"session": "any"}),
    (capabilities, {"prefers": {"big"}, "cool_down": 1000.0}),
    (update, {"newest": True}),
    (backoff_expires, {}),
    (steps_down, {}),
]


@pytest.mark.parametrize(("trigger", "policy"), TRIGGERS, ids=[trigger.__name__ for trigger, _ in TRIGGERS])
def test_an_election_looks_anew_when(trigger: Any, policy: dict[str, Any]) -> None:
    with World(11) as world:

        async def main() -> None:
            await trigger(await set_up(world, **policy))

        world.run(main())


def test_a_leader_in_doubt_makes_nobody_ask_before_it_expires() -> None:
    """*Suspect* is a word for the eyes; a lock decides."""
    with World(12) as world:

        async def main() -> None:
            stage = await set_up(world)
            stage.leader.agent.stop()
            now = stage.watcher.ports.clock.monotonic

            def liveness() -> str:
                leader = stage.watcher.services.roster.leader("app:r", now())
                return "expired" if leader is None else leader.liveness

            await world.until(lambda: liveness() == "suspect", within=30.0)
            await world.sleep(1.0)
            assert asks(stage, stage.standby)() and not asks(stage, stage.watcher)()

        world.run(main())


def test_a_burst_of_news_is_one_look() -> None:
    with World(13) as world:

        async def main() -> None:
            looks: list[float] = []

            def counting(_: object) -> bool:
                looks.append(world.loop.time())
                return True

            leader, member = join(world, "a"), join(world, "b")
            leader.lead()
            await world.until(lambda: leader.leading)
            member.lead(eligible=counting)
            await world.sleep(2.0)
            agent = world.agent("stranger")
            ports = world.ports(agent)
            agent.start(ports.locks.acquire(engine_lock("app", 1, "e-x")))
            channel = agent.call(lambda: ports.channels.open(channel_name("app", 1)))
            looks.clear()
            for number in range(1, 201):
                tab = TabNote("t-x", "c-x", 1, "active", number % 2 == 0, True, "", (), (), 0.0)
                agent.call(lambda number=number, tab=tab: channel.post(encode(Beacon("e-x", number, 60.0, (tab,), ()))))
                await world.sleep(0.0002)
            await world.sleep(1.0)
            assert 1 <= len(looks) <= 6, looks
            assert isinstance(next(iter(leader.tab.elections.values())).status, Leading)

        world.run(main())
