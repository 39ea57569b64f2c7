"""Takeovers by force: whatever the robbed one does until it hears of it is harmless, and nobody who lives is robbed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab import OPERATIONS, Lab, seeds

from kit import Member, join
from tabhelm.authority.web_locks import WebLocksAuthority, WebLocksHold
from tabhelm.election import Takeover
from tabhelm.fencing.epochs import EpochIssuer, Grant
from tabhelm.leadership import Leading, Waiting
from tabhelm.names import Resource
from tabhelm.ports import Clock
from tabhelm.simulated import Faults
from tabhelm.simulated.locks import SimulatedLocks


def robberies(lab: Lab) -> list[str]:
    """Who was robbed of a leader lock."""
    return [line.split()[1] for line in lab.world.trace if " robbed of " in line and ":leader:" in line]


def issuer(member: Member) -> EpochIssuer:
    found: EpochIssuer = member.services.elections.authorities.known["web-locks"]._issuer  # type: ignore[attr-defined]
    return found


def flushing(member: Member) -> Any:
    return member.call(lambda: member.tab.queue("mutations", endpoint=OPERATIONS))


def leads(member: Member) -> Callable[[], bool]:
    return lambda: any(isinstance(each.status, Leading) for each in member.tab.elections.values())


def claims(member: Member) -> bool:
    """Let its standby take over now, as one whose holder is known to hang."""
    return any([member.call(election.claim, 0.0) for election in member.tab.elections.values()])


# -- the robbed one ----------------------------------------------------------------------------------------------------


async def robbed_and_deaf(lab: Lab) -> None:
    """The holder of the queue hears of the theft seconds later, and goes on claiming and sending until then."""

    first, second = join(lab.world, "a"), join(lab.world, "b")
    queue = flushing(first)
    await lab.until(leads(first))
    theirs = flushing(second)
    number = 0

    async def enqueue(member: Member, into: Any) -> None:
        nonlocal number
        number += 1
        op_id, partition = f"op{number}", lab.rng.choice("abcd")
        asked_at = lab.world.loop.time()
        await member.agent.start(into.enqueue({"n": number}, partition=partition, op_id=op_id))
        lab.history.acknowledged(
            op_id, partition=partition, tab=member.agent.name, asked_at=asked_at, at=lab.world.loop.time()
        )

    for at in range(25):
        if at == 6:
            lab.world.faults.lock_delay = (1.0, 6.0)
            await lab.until(lambda: claims(second), within=1.0)
        if lab.rng.random() < 0.5:
            await enqueue(first, queue)
        if at > 6 and lab.rng.random() < 0.5:
            await enqueue(second, theirs)
        await lab.sleep(lab.rng.uniform(0.0, 0.5))
    lab.world.faults.lock_delay = (0.0, 0.003)
    await lab.sleep(90.0)


@seeds(20)
def test_a_robbed_leader_that_has_not_heard_of_it_harms_nothing(seed: int) -> None:
    lab = Lab(seed, faults=Faults(http_delay=(0.001, 0.3)))
    lab.run(robbed_and_deaf(lab))
    assert lab.drained()
    assert robberies(lab) == ["a"]


class Staller(WebLocksAuthority):
    """Stalls for up to ten seconds between the lock and its epoch."""

    pause: Callable[[], float]
    clock: Clock

    async def acquire(self, resource: Resource, *, owner: str, owner_id: str) -> WebLocksHold:
        hold = await super().acquire(resource, owner=owner, owner_id=owner_id)
        begin = hold.begin

        async def stalled() -> Grant:
            await self.clock.sleep(self.pause())
            return await begin()

        hold.begin = stalled  # type: ignore[method-assign]
        return hold


async def stalled_before_its_epoch(lab: Lab) -> None:
    """The first one has the lock and no epoch yet; while it stalls, the second one takes over by force.

    The news of the theft reach the first one late: until then it believes to hold the lock.
    """
    first, second = join(lab.world, "a"), join(lab.world, "b")
    authority = Staller(first.ports.locks, issuer(first), 1)
    authority.clock, authority.pause = first.ports.clock, lambda: lab.rng.uniform(0.0, 10.0)
    first.services.elections.authorities.known[authority.name] = authority
    first.lead(authorities=("web-locks",))
    await lab.sleep(2.0)
    election = second.lead()
    await lab.until(lambda: isinstance(election.status, (Waiting, Leading)), within=5.0)
    await lab.sleep(lab.rng.uniform(0.5, 3.0))
    news = first.ports.locks
    assert isinstance(news, SimulatedLocks)
    news.inbox._last = lab.world.loop.time() + lab.rng.uniform(0.0, 15.0)
    claims(second)
    await lab.sleep(60.0)


def issued_after_the_takeover(lab: Lab) -> list[str]:
    """Who was granted an epoch after the robber, without having asked for the lock anew."""
    if not robberies(lab):
        return []
    owners = [owner for _, _, _, owner in lab.order]
    after = owners[owners.index("t-b:c-b") + 1 :] if "t-b:c-b" in owners else []
    return [owner for owner in after if owner != "t-b:c-b"]


@seeds(40)
def test_a_takeover_while_the_holder_stalls_before_its_epoch(seed: int) -> None:
    lab = Lab(seed)
    lab.run(stalled_before_its_epoch(lab))
    assert "t-b:c-b" in {owner for _, _, _, owner in lab.order}
    assert issued_after_the_takeover(lab) == [], f"seed {seed}"


@seeds(20)
def test_two_standbys_that_take_over_in_the_same_instant(seed: int) -> None:
    lab = Lab(seed, faults=Faults(lock_delay=(0.0, 0.5), commit_delay=(0.0, 0.3)))

    async def play() -> None:
        members = [join(lab.world, name, in_page=True) for name in "abc"]
        old, *others = members
        old.lead()
        await lab.until(leads(old))
        for member in others:
            member.lead()
        await lab.until(lambda: all(member.led == [] for member in others))
        await lab.sleep(5.0)
        old.agent.stop()
        await lab.sleep(lab.rng.uniform(0.0, 3.0))
        for member in others:
            claims(member)
        await lab.until(lambda: sum(leads(member)() for member in others) == 1)
        await lab.sleep(20.0)
        assert sum(leads(member)() for member in others) == 1
        old.agent.go()
        await lab.sleep(10.0)
        assert [leads(member)() for member in members].count(True) == 1 and not leads(old)()

    lab.run(play())


@seeds(12)
def test_a_hung_leader_on_the_window_host_wakes_with_a_token_in_its_hand(seed: int) -> None:
    """The token was drawn before the hang, the request goes out after it: the register knows a newer epoch by then."""
    lab = Lab(seed)

    async def play() -> None:
        careless = lab.writer(pause=(0.0, 0.01), thinking=8.0)
        first = lab.tab("a", lead=True, loop=careless, queue=True, host="window")
        await lab.led(first)
        second = lab.tab("b", lead=True, queue=True, host=lab.rng.choice(["shared", "window"]))
        await second.page.session.ready
        await lab.sleep(8.0)
        tokens = len(lab.register.tokens)
        await lab.until(lambda: len(lab.register.tokens) > tokens)
        await lab.sleep(0.3)
        lab.enqueue(first)
        await lab.sleep(1.0)
        first.page.hang(lab.rng.uniform(80.0, 100.0))
        await lab.led(second, within=66.0)
        lab.enqueue(second)
        await lab.sleep(60.0)
        await lab.settled()

    lab.run(play())
    assert lab.register.refused, "the late write reached the register, and was refused"


# -- who lives is not robbed -------------------------------------------------------------------------------------------


async def throttled_and_hidden(lab: Lab) -> None:
    """A hidden page on the window host may be held to one timer a minute; it says so before it is."""
    first = lab.tab("a", lead=True, queue=True, host="window")
    await lab.led(first)
    second = lab.tab("b", lead=True, queue=True, host="window", policy={"takeoverAfterMs": 10_000})
    await second.page.session.ready
    await lab.sleep(10.0)
    first.page.show(False)
    await lab.sleep(5.0)
    first.page.agent.clock.throttle = 60.0
    for _ in range(10):
        await lab.sleep(lab.rng.uniform(20.0, 60.0))
        lab.enqueue(second)
    await lab.settled()


@seeds(8)
def test_a_throttled_hidden_leader_is_left_alone(seed: int) -> None:
    lab = Lab(seed)
    lab.run(throttled_and_hidden(lab))
    assert robberies(lab) == []


async def slow_to_begin(lab: Lab) -> None:
    """Pages, store and receiver each take nearly as long as they may: over fifteen seconds in all. (The database is
    there already: what it takes to make one is no part of a beginning.)"""
    first = lab.tab("first", build="first", lead=True)
    await lab.sleep(5.0)
    first.page.close()
    lab.world.faults.http_delay = (4.8, 4.9)
    lab.world.faults.port_delay = (0.8, 0.9)
    lab.world.faults.commit_delay = (4.0, 5.0)
    for name in "abc":
        lab.tab(name, build=name, lead=True, policy={"takeoverAfterMs": 10_000})
    await lab.sleep(40.0)
    for _ in range(3):
        leader = next((tab for tab in lab.tabs if tab.election is not None and tab.election.acting), None)
        if leader is not None:
            leader.election.step_down()  # type: ignore[union-attr]
        await lab.sleep(40.0)


@seeds(8)
def test_who_begins_slowly_is_not_taken_for_dead(seed: int) -> None:
    lab = Lab(seed)
    lab.run(slow_to_begin(lab), check=False)
    assert robberies(lab) == []
    assert len(lab.order) >= 3


async def all_stopped_for_a_while(lab: Lab) -> None:
    """The device sleeps; afterwards its pages wake one after the other, within a second or two."""
    members = [join(lab.world, name, in_page=True) for name in "abc"]
    for member in members:
        member.lead(takeover=Takeover.fenced(after=10.0))
    await lab.sleep(15.0)
    for _ in range(5):
        order = lab.rng.sample(members, len(members))
        for member in order:
            member.agent.stop()
        await lab.sleep(lab.rng.choice([30.0, 600.0, 8 * 3600.0]))
        for member in order:
            member.agent.go()
            await lab.sleep(lab.rng.uniform(0.0, 0.7))
        await lab.sleep(30.0)


@seeds(8)
def test_after_the_device_slept_nobody_is_taken_for_dead(seed: int) -> None:
    lab = Lab(seed)
    lab.run(all_stopped_for_a_while(lab), limit=7 * 24 * 3600.0)
    assert robberies(lab) == []


async def two_protocols(lab: Lab) -> None:
    """They share the queue and its leader's lock, but not a channel for beacons."""
    old = lab.tab("old", queue=True, protocol=1)
    new = lab.tab("new", queue=True, protocol=2, host=lab.rng.choice(["shared", "window"]))
    for tab in (old, new):
        await tab.page.session.ready
    for _ in range(30):
        lab.enqueue(lab.rng.choice([old, new]))
        await lab.sleep(lab.rng.uniform(1.0, 20.0))
    await lab.settled()


@seeds(8)
def test_two_protocols_with_one_queue(seed: int) -> None:
    lab = Lab(seed)
    lab.run(two_protocols(lab))
    assert robberies(lab) == []


async def first_in_line_stopped(lab: Lab) -> None:
    """The leader dies, and the lock goes to a page that was stopped in silence. Four others ask at about one time."""
    lab.world.faults.commit_delay = (0.3, 0.6)
    members = [join(lab.world, f"m{n}", in_page=True) for n in range(6)]
    leader, first, *others = members
    leader.lead()
    await lab.until(leads(leader))
    election = first.lead()
    await lab.until(lambda: election.status == Waiting(True, 0))
    for member in others:
        member.lead()
    await lab.sleep(10.0)
    first.agent.stop()
    await lab.sleep(lab.rng.uniform(0.0, 5.0))
    leader.agent.die()
    await lab.sleep(120.0)
    assert sum(leads(member)() for member in others) == 1
    first.agent.go()
    await lab.sleep(20.0)


@seeds(8)
def test_one_of_many_standbys_takes_over_and_the_others_let_it(seed: int) -> None:
    lab = Lab(seed)
    lab.run(first_in_line_stopped(lab))
    assert robberies(lab) == ["m1"]


@seeds(12)
def test_a_waiter_stopped_in_silence_is_granted_the_lock(seed: int) -> None:
    lab = Lab(seed)

    async def play() -> None:
        first = lab.tab("a", lead=True, queue=True, host="window")
        await lab.led(first)
        stopped = lab.tab("b", lead=True, queue=True, host="window")
        await stopped.page.session.ready
        await lab.sleep(10.0)
        stopped.page.suspend()
        third = lab.tab("c", lead=True, queue=True, host=lab.rng.choice(["shared", "window"]))
        await third.page.session.ready
        await lab.sleep(lab.rng.uniform(0.0, 10.0))
        first.page.crash()
        lab.enqueue(third)
        await lab.led(third, within=90.0)
        stopped.page.unsuspend()
        await lab.sleep(30.0)
        lab.enqueue(third)
        await lab.settled()

    lab.run(play())
    assert "b" in robberies(lab)


# -- a shared engine that hangs ----------------------------------------------------------------------------------------

STALL_AFTER = 4.0


@seeds(12)
def test_a_hung_shared_engine_costs_its_pages_the_stall_time_and_a_moment(seed: int) -> None:
    """It hangs for good, with its own lock and the leaders'. Its pages tell the next engine which one fell silent."""
    lab = Lab(seed)

    async def play() -> None:
        tabs = [lab.tab(f"t{n}", lead=True, queue=True, stall_after=STALL_AFTER) for n in range(3)]
        await lab.until(lambda: any(tab.election is not None and tab.election.acting for tab in tabs))
        (engine,) = (worker.engine for worker in lab.browsers[0].living_engines())
        elsewhere = lab.tab("x", lead=True, queue=True, stall_after=STALL_AFTER, build="x")
        for tab in [*tabs, elsewhere]:
            await tab.page.session.ready
        await lab.sleep(15.0)
        for tab in tabs:
            lab.enqueue(tab)
        await lab.sleep(lab.rng.uniform(0.0, 10.0))
        engine.agent.stop()
        start = lab.world.loop.time()
        boot = lab.browsers[0].boot[1]
        await lab.until(lambda: not any(tab.election is not None and tab.election.acting for tab in tabs))
        everybody = [tab for tab in lab.tabs if tab.election is not None]
        await lab.until(lambda: any(tab.election.acting for tab in everybody if tab.election))
        assert lab.world.loop.time() - start < STALL_AFTER + boot + 2.5
        await lab.sleep(20.0)
        for tab in tabs:
            lab.enqueue(tab)
        await lab.settled(within=120.0)

    lab.run(play())
    assert set(robberies(lab)) == {"engine1"}


async def blamed_though_it_lives(lab: Lab) -> None:
    """A page says that an engine fell silent, which only it could not hear. Others have known each other for long."""
    first = lab.tab("a", build="one", lead=True, queue=True)
    await lab.led(first)
    second = lab.tab("b", build="two", lead=True, queue=True)
    await second.page.session.ready
    await lab.sleep(lab.rng.uniform(20.0, 40.0))
    blamed = lab.browsers[0].living_engines()[0].engine.engine_id
    third = lab.tab("c", build="two", lead=True, queue=True)
    third.page.session.silent_engine = blamed
    await lab.sleep(20.0)
    lab.enqueue(third)
    await lab.settled()


@seeds(8)
def test_an_engine_that_is_blamed_but_answers_keeps_what_it_has(seed: int) -> None:
    lab = Lab(seed)
    lab.run(blamed_though_it_lives(lab))
    assert robberies(lab) == []


@pytest.mark.parametrize("silent", ["", "../x", "e" * 600, "unknown"])
def test_a_page_that_names_no_engine_at_all(silent: str) -> None:
    lab = Lab(1)

    async def play() -> None:
        tab = lab.tab("a", lead=True)
        tab.page.session.silent_engine = silent
        await lab.led(tab)
        await lab.sleep(5.0)

    lab.run(play())


def test_a_policy_without_takeovers_is_not_overruled_by_a_claim() -> None:
    lab = Lab(1)

    async def play() -> None:
        first, second = join(lab.world, "a"), join(lab.world, "b")
        first.lead()
        await lab.until(leads(first))
        second.lead(takeover=Takeover.never)
        await lab.sleep(5.0)
        assert not claims(second)
        await lab.sleep(5.0)
        assert leads(first)()

    lab.run(play())
