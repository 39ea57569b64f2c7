"""The alarm when nobody acts, or more than one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kit import Member, join, one_leader
from tabhelm.leadership import LeaderContext, Leading
from tabhelm.messages import Beacon, LeaderNote, TabNote, encode
from tabhelm.names import channel_name, engine_lock
from tabhelm.observe import ActingAlarm, ActingMonitor, ActingRestored, Event, Events, TaskFailed
from tabhelm.ports import Timer
from tabhelm.simulated import World

GHOST = TabNote("t-x", "c-x", 1, "active", True, True, "", (), ("app:r",), 5.0)


def told(member: Member) -> list[tuple[str, int]]:
    return [
        (type(event).__name__, event.acting)
        for event in member.services.events.recent
        if isinstance(event, (ActingAlarm, ActingRestored))
    ]


def impostor(world: World, leaders: tuple[LeaderNote, ...] = (LeaderNote("app:r", "t-x", "c-x", "", 9, 0.0),)) -> Any:
    """An engine that only talks: it says that its tab leads. Returns how to say it again."""
    agent = world.agent("x")
    ports = world.ports(agent)
    agent.start(ports.locks.acquire(engine_lock("app", 1, "e-x")))
    channel = agent.call(lambda: ports.channels.open(channel_name("app", 1)))
    number = [0]

    def say(notes: tuple[LeaderNote, ...] = leaders) -> None:
        number[0] += 1
        beacon = Beacon("e-x", number[0], 60.0, (GHOST,), notes)
        agent.call(lambda: channel.post(encode(beacon)))

    return say


def test_two_that_say_they_lead_are_an_alarm_and_its_end_is_told() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            member.lead(acting_alarm=12.0)
            await one_leader(world, [member])
            say = impostor(world)
            await world.sleep(1.0)
            say()
            await world.sleep(10.0)
            assert told(member) == []
            assert member.call(member.tab.metrics).resources["app:r"].leaders_acting == 2
            await world.sleep(3.0)
            assert told(member) == [("ActingAlarm", 2)]
            say(())
            await world.sleep(1.0)
            assert told(member) == [("ActingAlarm", 2), ("ActingRestored", 1)]
            assert member.call(member.tab.metrics).resources["app:r"].alarms == {"several": 1}
            event = next(e for e in member.services.events.recent if isinstance(e, ActingAlarm))
            assert 12_000 <= event.for_ms < 12_500

        world.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_nobody_leading_though_somebody_could_is_an_alarm(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            member = join(world, "a")
            thief = world.agent("thief")
            ports = world.ports(thief)
            ports.locks.admit("x")
            lock = await thief.start(ports.locks.acquire("app:v1:leader:r", owner="x"))
            election = member.lead(acting_alarm=20.0)
            await world.sleep(19.0)
            assert told(member) == []
            await world.sleep(3.0)
            assert told(member) == [("ActingAlarm", 0)]
            thief.call(lock.release)
            await world.until(lambda: isinstance(election.status, Leading))
            await world.sleep(0.5)
            assert told(member) == [("ActingAlarm", 0), ("ActingRestored", 1)]
            assert member.call(member.tab.metrics).resources["app:r"].alarms == {"none": 1}

        world.run(main())


def test_a_tab_with_less_patience_that_comes_later_is_heard_in_its_own_time() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            told: list[Event] = []
            member.services.events.subscribe(told.append)
            stands = member.services.acting.stands
            member.call(lambda: stands("app:r", 30.0, lambda: True))
            await world.sleep(1.0)
            member.call(lambda: stands("app:r", 5.0, lambda: True))
            await world.sleep(3.0)
            assert not told
            await world.sleep(2.0)
            assert [type(event) for event in told] == [ActingAlarm]

        world.run(main())


def test_nobody_leading_by_policy_is_none() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            member.set(visible=False)
            member.lead(visible="require", acting_alarm=5.0)
            await world.sleep(60.0)
            assert told(member) == []
            member.set(visible=True)
            await world.until(lambda: member.leading)
            member.set(visible=False)
            await world.sleep(60.0)
            assert told(member) == []

        world.run(main())


def test_an_alarm_can_be_switched_off_and_a_tab_that_left_has_none() -> None:
    with World(1) as world:

        async def main() -> None:
            thief = world.agent("thief")
            ports = world.ports(thief)
            ports.locks.admit("x")
            await thief.start(ports.locks.acquire("app:v1:leader:r", owner="x"))
            quiet, gone = join(world, "a"), join(world, "b")
            quiet.lead(acting_alarm=None)
            gone.lead(acting_alarm=10.0)
            await world.sleep(5.0)
            await gone.agent.start(gone.tab.leave("over"))
            await world.sleep(100.0)
            assert told(quiet) == told(gone) == []

        world.run(main())


def test_a_page_that_slept_does_not_take_its_sleep_for_an_outage() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a", in_page=True)
            thief = world.agent("thief")
            ports = world.ports(thief)
            ports.locks.admit("x")
            lock = await thief.start(ports.locks.acquire("app:v1:leader:r", owner="x"))
            member.lead(acting_alarm=60.0)
            await world.sleep(10.0)
            member.agent.freeze()  # the device sleeps: nobody said so before
            await world.sleep(3600.0)
            member.agent.thaw()
            await world.sleep(10.0)
            assert told(member) == []
            thief.call(lock.release)
            await world.until(lambda: member.leading)

        world.run(main())


@pytest.mark.parametrize("seed", range(6))
def test_an_ordinary_handover_is_no_alarm(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(3)]
            for member in members:
                member.lead(acting_alarm=2.0)
            for _ in range(2):
                leader = await one_leader(world, [m for m in members if m.agent.alive])
                await world.sleep(5.0)
                leader.agent.process.crash()
            await one_leader(world, [m for m in members if m.agent.alive])
            await world.sleep(60.0)
            assert [told(member) for member in members] == [[], [], []]

        world.run(main())


def test_a_queue_that_another_protocol_s_tab_flushes_is_not_without_a_leader() -> None:
    with World(1) as world:

        async def main() -> None:
            old, new = join(world, "old", protocol=1), join(world, "new", protocol=2)

            def stand(member: Member) -> None:
                member.tab.queue("mutations", endpoint="/ops")

            old.call(lambda: stand(old))
            await world.until(lambda: old.leading)
            new.call(lambda: stand(new))
            await world.sleep(200.0)
            assert old.leading and not new.leading
            assert told(old) == told(new) == []
            assert new.call(new.tab.metrics).resources["app:offline-queue:mutations"].leaders_acting == 1
            old.agent.process.crash()
            await world.until(lambda: new.leading)
            await world.sleep(100.0)
            assert told(new) == []

        world.run(main())


class Lab:
    """A monitor whose time and leaders the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.acting: dict[str, int] = {}
        self.due: list[Callable[[], None]] = []
        self.events = Events()
        self.told: list[tuple[str, str]] = []
        self.followed: dict[str, Callable[[], None]] = {}
        self.monitor = ActingMonitor(
            self.events, self, lambda name: self.acting.get(name, 0), lambda: self.now, self._follow
        )
        self.events.subscribe(lambda event: self.told.append((type(event).__name__, getattr(event, "resource", ""))))

    def _follow(self, name: str, callback: Callable[[], None]) -> Callable[[], None]:
        self.followed[name] = callback
        return lambda: self.followed.pop(name, None) and None

    def news(self, **acting: int) -> None:
        """Who leads what is another now: whoever follows that is told."""
        changed = {name for name in {*self.acting, *acting} if self.acting.get(name, 0) != acting.get(name, 0)}
        self.acting = acting
        for name in sorted(changed & self.followed.keys()):
            self.followed[name]()

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.due.append(callback)
        return LabTimer(self, callback)

    async def sleep(self, delay: float) -> None:
        self.now += delay

    def stand(self, resource: str) -> Callable[[], None]:
        return self.monitor.stands(resource, 10.0, lambda: True)

    def later(self, seconds: float) -> None:
        """That much later: what is due then is called, as far as nobody has taken it back."""
        self.now += seconds
        for callback in list(self.due):
            if callback in self.due:
                self.due.remove(callback)
                callback()

    def listen(self, kind: type[Event], act: Callable[[], object]) -> None:
        """Act once, when the first such event is told."""
        done: list[Event] = []

        def heard(event: Event) -> None:
            if isinstance(event, kind) and not done:
                done.append(event)
                act()

        self.events.subscribe(heard)


class LabTimer:
    def __init__(self, lab: Lab, callback: Callable[[], None]) -> None:
        self._lab = lab
        self._callback = callback

    def cancel(self) -> None:
        if self._callback in self._lab.due:
            self._lab.due.remove(self._callback)


def test_a_listener_to_the_alarm_may_stand_for_something_else() -> None:
    lab = Lab()
    lab.stand("app:a")
    lab.stand("app:b")
    lab.listen(ActingAlarm, lambda: lab.stand("app:fallback"))
    lab.later(10.0)
    assert lab.told == [("ActingAlarm", "app:a"), ("ActingAlarm", "app:b")]
    lab.later(10.0)
    assert lab.told[2:] == [("ActingAlarm", "app:fallback")]


def test_a_listener_to_the_alarm_may_give_up_what_is_still_to_be_judged() -> None:
    lab = Lab()
    lab.stand("app:a")
    gone = lab.stand("app:b")
    lab.listen(ActingAlarm, gone)
    lab.later(10.0)
    lab.later(10.0)
    assert lab.told == [("ActingAlarm", "app:a")] and lab.due == []


def test_a_listener_to_the_end_of_an_alarm_hears_of_it_once_whatever_it_does() -> None:
    lab = Lab()
    gone = lab.stand("app:a")
    lab.later(10.0)
    lab.listen(ActingRestored, lambda: lab.stand("app:b"))
    lab.news(**{"app:a": 1})
    assert lab.told == [("ActingAlarm", "app:a"), ("ActingRestored", "app:a")]
    lab.news()
    lab.listen(ActingAlarm, gone)
    lab.later(10.0)
    assert lab.told[2:] == [("ActingAlarm", "app:b")] and lab.due == [], "app:a was given up by the listener"


def test_what_a_listener_changes_about_who_leads_is_not_judged_by_what_was_before() -> None:
    lab = Lab()
    lab.acting = {"app:b": 1}
    lab.stand("app:a")
    lab.stand("app:b")
    lab.listen(ActingAlarm, lab.news)
    lab.later(10.0)
    assert lab.told == [("ActingAlarm", "app:a")]
    lab.later(10.0)
    assert lab.told[1:] == [("ActingAlarm", "app:b")], "nobody leads it since the listener acted"


def test_a_fallback_that_is_started_by_the_alarm_leads() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            thief = world.agent("thief")
            ports = world.ports(thief)
            ports.locks.admit("x")
            await thief.start(ports.locks.acquire("app:v1:leader:r", owner="x"))
            member.lead(acting_alarm=10.0)
            led = []

            async def fallback(context: LeaderContext) -> None:
                led.append(context)
                await context.sleep(1000.0)

            def heard(event: Event) -> None:
                if isinstance(event, ActingAlarm):
                    member.tab.lead("fallback", fallback)

            member.services.events.subscribe(heard)
            await world.until(lambda: bool(led))
            assert [e for e in member.services.events.recent if isinstance(e, TaskFailed)] == []

        world.run(main())
