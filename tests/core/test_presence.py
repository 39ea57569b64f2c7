"""The roster judges by the observer's own clock, beacons are few, and a duplicated tab gets its own id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tabhelm.messages import Ask, Beacon, LeaderNote, LeaderSigns, TabNote, decode, encode
from tabhelm.presence import Beaconer, Roster, claim_identity
from tabhelm.presence.signs import TICK, Sign, Signs
from tabhelm.simulated import World

TAB = TabNote("t-1", "c-1", 1, "active", True, True, "1.0", (), ("app:r",), 2.0)


def beacon(
    number: int = 1, *, sender: str = "other", pause: float = 15.0, tabs: tuple[TabNote, ...] = (TAB,)
) -> Beacon:
    return Beacon(sender, number, pause, tabs, (LeaderNote("app:r", "t-1", "c-1", "d", 4, 0.0),) if tabs else ())


def ticked(roster: Roster, begin: float, end: float) -> None:
    now = begin
    while now <= end:
        roster.tick(now)
        now += TICK


def test_a_silent_engine_becomes_suspect_expired_and_forgotten_by_its_own_word() -> None:
    roster = Roster("me")
    assert roster.heard(beacon(), 100.0)
    seen = {}
    for late in (29, 31, 59, 61):
        ticked(roster, 100.0, 100.0 + late)
        seen[late] = [tab.liveness for tab in roster.tabs(100.0 + late)]
    assert seen == {29: ["alive"], 31: ["suspect"], 59: ["suspect"], 61: ["expired"]}
    assert roster.leader("app:r", 159.0) is not None
    assert roster.leader("app:r", 161.0) is None
    ticked(roster, 161.0, 170.0)
    assert roster.tabs(170.0) == []


def test_the_time_in_which_we_stood_still_is_forgiven() -> None:
    roster = Roster("me")
    roster.heard(beacon(), 100.0)
    ticked(roster, 100.0, 110.0)
    roster.tick(5000.0)  # frozen for more than an hour
    assert [tab.liveness for tab in roster.tabs(5000.0)] == ["alive"]


def test_who_was_heard_at_the_thaw_is_forgiven_no_time() -> None:
    """After a thaw messages may come before the tick that finds out how long we slept."""
    roster = Roster("me")
    roster.heard(beacon(1), 100.0)
    roster.tick(100.0)
    roster.heard(beacon(2), 5000.0)
    roster.tick(5000.0)
    assert roster.heard_from(5000.0)[0].silent_for == 0.0
    ticked(roster, 5000.0, 5061.0)
    assert [tab.liveness for tab in roster.tabs(5061.0)] == ["expired"]


def test_old_beacons_and_our_own_are_dropped() -> None:
    roster = Roster("me")
    roster.heard(beacon(5), 1.0)
    assert not roster.heard(beacon(4, tabs=()), 2.0)
    assert not roster.heard(beacon(9, sender="me"), 2.0)
    assert [tab.tab_id for tab in roster.tabs(2.0)] == ["t-1"]
    roster.heard(beacon(6, tabs=()), 3.0)
    assert roster.tabs(3.0) == []


def test_growing_older_is_no_news_but_a_change_is() -> None:
    with World(1) as world:
        a, b = world.agent("a"), world.agent("b")
        ports, other = world.ports(a), world.ports(b)
        heard: list[Beacon] = []

        def listen() -> None:
            other.channels.open("c").subscribe(lambda data: heard.append(decode(data)))  # type: ignore[arg-type]

        async def main() -> None:
            b.call(listen)
            roster = Roster("e")

            def begin() -> None:
                Beaconer(roster, ports.channels.open("c"), ports.clock, ports.entropy)
                for number in range(20):
                    note = replace(TAB, tab=f"t-{number}", connection=f"c-{number}")
                    roster.put_own(note, ports.clock.monotonic())

            a.call(begin)
            await world.sleep(1.0)
            assert len(heard) == 1 and len(heard[0].tabs) == 20  # twenty at once are one message
            await world.sleep(60.0)
            assert 4 <= len(heard) <= 6  # then a beat every 15 s
            a.call(lambda: roster.set_leading(LeaderNote("app:r", "t-1", "c-1", "d", 1, 0.0), ports.clock.monotonic()))
            await world.sleep(1.0)
            assert heard[-1].leaders[0].epoch == 1 and heard[-1].next == 5.0

        world.run(main())


@pytest.mark.parametrize(("throttled", "credit"), [(False, TICK), (True, 20.0)])
def test_a_leap_of_the_clock_is_no_silence_even_before_the_tick_that_finds_it_out(
    throttled: bool, credit: float
) -> None:
    signs = Signs()
    signs.throttled = throttled
    signs.tick(100.0)
    signs.lives(["app:r"], 5.0, 102.0, "other")
    sign = signs.last("app:r")
    assert sign is not None
    for now in (5000.0, 5000.1):  # the second one after the tick
        assert signs.awake(now) - sign.at == pytest.approx(credit - 2.0 + (now - 5000.0) * (now > 5000.05))
        signs.tick(5000.0)
    assert signs.awake(5004.0) - sign.at == pytest.approx(credit + 2.0)


def test_signs_are_news_of_leaders_that_begin_go_on_and_end() -> None:
    roster = Roster("me")
    assert roster.sign("app:r", 1.0) is None
    roster.heard(beacon(1, pause=5.0), 1.0)
    assert roster.sign("app:r", 2.0) == Sign(1.0, 5.0, True, "other")
    roster.heard(beacon(1, pause=5.0), 3.0)  # said before: no sign
    assert roster.sign("app:r", 3.0) == Sign(1.0, 5.0, True, "other")
    roster.heard(beacon(2, tabs=()), 4.0)
    assert roster.sign("app:r", 5.0) == Sign(4.0, 0.0, False, "other")
    roster.heard(beacon(1, sender="another", pause=5.0), 6.0)
    roster.forget("another", 7.0)
    assert roster.sign("app:r", 8.0) == Sign(7.0, 0.0, False, "another")
    roster.set_leading(LeaderNote("app:r", "t", "c", "d", 1, 0.0), 9.0)
    assert roster.sign("app:r", 30.0) == Sign(30.0, 5.0, True, "me")
    roster.clear_leading("app:r", "c", 31.0)
    assert roster.sign("app:r", 40.0) == Sign(31.0, 0.0, False, "me")


@pytest.mark.parametrize("end", ["dies", "beacons", "leaves", "speaks another protocol"])
def test_the_end_of_a_robbed_leader_is_no_end_of_its_successor(end: str) -> None:
    roster = Roster("me")
    led = beacon().leaders
    if end == "speaks another protocol":
        roster.heard_signs(LeaderSigns("old", 1, 5.0, led), 1.0)
    else:
        roster.heard(beacon(1, sender="old", pause=5.0), 1.0)
    roster.heard(beacon(1, sender="new", pause=60.0), 70.0)
    match end:
        case "dies":
            roster.forget("old", 75.0)
        case "beacons":
            roster.heard(Beacon("old", 2, 15.0, (TAB,), ()), 75.0)
        case "leaves":
            roster.heard(beacon(2, sender="old", tabs=()), 75.0)
        case _:
            roster.heard_signs(LeaderSigns("old", 2, 5.0, ()), 75.0)
    assert roster.sign("app:r", 76.0) == Sign(70.0, 60.0, True, "new")
    roster.forget("new", 80.0)
    assert roster.sign("app:r", 81.0) == Sign(80.0, 0.0, False, "new")


def test_a_successor_that_is_late_by_its_own_word_does_not_outweigh_news() -> None:
    roster = Roster("me")
    roster.heard(beacon(1, sender="old", pause=5.0), 1.0)
    roster.heard(beacon(1, sender="new", pause=5.0), 2.0)
    roster.forget("old", 13.0)
    assert roster.sign("app:r", 14.0) == Sign(13.0, 0.0, False, "old")


def test_signs_of_another_protocol_tell_who_lives_and_nothing_else() -> None:
    roster = Roster("me")
    note = LeaderNote("app:offline-queue:m", "t-1", "c-1", "d", 4, 0.0)
    assert roster.heard_signs(LeaderSigns("other", 2, 5.0, (note,)), 1.0)
    assert not roster.heard_signs(LeaderSigns("other", 1, 5.0, (note,)), 2.0)
    assert not roster.heard_signs(LeaderSigns("me", 9, 5.0, (note,)), 2.0)
    assert roster.sign(note.resource, 3.0) == Sign(1.0, 5.0, True, "other")
    assert roster.leader(note.resource, 3.0) is None and roster.tabs(3.0) == []
    roster.heard_signs(LeaderSigns("other", 3, 5.0, ()), 4.0)
    assert roster.sign(note.resource, 5.0) == Sign(4.0, 0.0, False, "other")


class Memory:
    def __init__(self) -> None:
        self.value: tuple[str, int] | None = None

    def read(self) -> tuple[str, int] | None:
        return self.value

    def write(self, tab_id: str, generation: int) -> None:
        self.value = (tab_id, generation)


@pytest.mark.parametrize("seed", range(10))
def test_a_reload_keeps_the_id_and_a_duplicate_draws_its_own(seed: int) -> None:
    with World(seed) as world:

        async def join(name: str, memory: Memory) -> tuple[str, int]:
            agent = world.agent(name)
            ports = world.ports(agent)
            claim = claim_identity("app", 1, memory, ports.locks, ports.clock, ports.entropy)
            identity, lock = await agent.start(claim)
            assert lock.held
            return identity.tab_id, identity.generation

        async def main() -> None:
            memory = Memory()
            first = await join("first", memory)
            copied = Memory()
            copied.value = memory.value
            duplicate = await join("duplicate", copied)
            assert duplicate[0] != first[0] and duplicate[1] == 1
            assert copied.value == duplicate
            world.agents["first"].die()
            assert await join("reloaded", memory) == (first[0], first[1] + 1)
            # A browser that takes its time over locks takes nobody's id away.
            await world.sleep(1.0)
            world.faults.lock_delay = (0.4, 0.6)
            world.agents["reloaded"].die()
            assert await join("again", memory) == (first[0], first[1] + 2)
            late = Memory()
            late.value = memory.value
            assert (await join("late duplicate", late))[0] != first[0]

        world.run(main())


def test_messages_that_are_encoded_are_decoded() -> None:
    note = LeaderNote("app:offline-queue:m", "t-1", "c-1", "d", 4, 0.0)
    for message in (beacon(), LeaderSigns("other", 2, 5.0, (note,)), Ask("one", "two")):
        assert decode(encode(message)) == message


def test_the_last_goodbye_is_said_at_once() -> None:
    """An engine whose last page went to the back/forward cache is suspended before any timer fires."""

    class Channel:
        said: list[str] = []

        def post(self, text: str) -> None:
            self.said.append(text)

        def subscribe(self, callback: object) -> None: ...

        def close(self) -> None: ...

    with World(3) as world:

        async def main() -> None:
            agent = world.agent("a")
            ports, roster, channel = world.ports(agent), Roster("e"), Channel()
            agent.call(lambda: Beaconer(roster, channel, ports.clock, ports.entropy))
            agent.call(roster.put_own, TAB, ports.clock.monotonic())
            await world.until(lambda: len(channel.said) == 1)
            agent.call(roster.remove_own, TAB.connection)
            last = decode(channel.said[-1])
            assert isinstance(last, Beacon) and (last.number, last.tabs) == (2, ())

        world.run(main())
