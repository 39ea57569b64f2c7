"""Why a leader steps down: each cause has its own word, and one order of doing it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import Member, join, one_leader
from tabhelm.errors import InvalidPayload, InvalidTransition, LeadershipLost
from tabhelm.fencing.epochs import EpochIssuer
from tabhelm.leadership import (
    BackingOff,
    Election,
    Idle,
    LeaderContext,
    Leading,
    State,
    SteppingDown,
    Stopped,
    Waiting,
)
from tabhelm.leadership.states import TRANSITIONS, check_transition, name_of
from tabhelm.messages import Beacon, LeaderNote, TabNote, encode
from tabhelm.names import Resource, channel_name, database_name, engine_lock
from tabhelm.observe import LeadershipChanged, as_dict
from tabhelm.presence import Identity, TabInfo
from tabhelm.simulated import World


@dataclass
class Case:
    """One leader, a standby, and something that happens to the leader."""

    world: World
    old: Member
    other: Member
    election: Election
    contexts: list[LeaderContext]


def lock_of(case: Case) -> str:
    return Resource("app", "r").lock(1)


async def lock_lost(case: Case) -> None:
    case.old.call(lambda: case.old.ports.locks.drop(case.old.tab.identity.connection_id))


async def lock_stolen(case: Case) -> None:
    thief = case.world.agent("thief")
    await thief.start(case.world.ports(thief).locks.acquire(lock_of(case), steal=True))


async def frozen(case: Case) -> None:
    case.old.set(lifecycle="frozen")


async def hidden(case: Case) -> None:
    case.old.set(lifecycle="hidden", visible=False)


async def closing(case: Case) -> None:
    case.old.set(lifecycle="closing")


async def stalled(case: Case) -> None:
    case.old.call(lambda: case.old.tab.set_stalled(True))


async def no_progress(case: Case) -> None:
    case.old.call(lambda: case.contexts[0].progress(1))
    await case.world.sleep(12.0)


async def incompatible(case: Case) -> None:
    newer = join(case.world, "newer", version="1.10")
    newer.lead(newest=True)


async def session_changed(case: Case) -> None:
    case.old.call(lambda: case.old.tab.update(user_session="bob", session_changed=True))


async def logout(case: Case) -> None:
    case.old.call(lambda: case.old.tab.update(user_session=None, session_changed=True))


async def generation_changed(case: Case) -> None:
    old = case.old
    old.call(lambda: old.ports.locks.admit("c-again"))
    old.call(lambda: old.tab.rejoin(Identity(old.tab.identity.tab_id, "c-again", 2)))


async def loop_failed(case: Case) -> None:
    case.contexts[0].tenure.progress = "fail"  # the loop of these tests looks for it


async def loop_finished(case: Case) -> None:
    case.contexts[0].tenure.progress = "finish"


async def unhealthy_and_failed(case: Case) -> None:
    """A circuit opens once too often, and the loop lets the error through."""
    case.contexts[0].tenure.progress = "break"


async def lease_renewal_failed(case: Case) -> None:
    case.old.agent.clock._offset += 11.0  # the machine slept


async def storage_wiped(case: Case) -> None:
    case.world.storage.wipe()


async def database_deleted(case: Case) -> None:
    case.world.storage.delete(database_name("app"))


async def database_newer(case: Case) -> None:
    """Upgraded while nobody's connection was open, so that no ``versionchange`` could tell."""
    name = database_name("app")
    case.world.storage.close_connections(name)
    case.world.storage.upgrade(name, 2, lambda: None)


async def newer_epoch(case: Case) -> None:
    grant = case.contexts[0].tenure.grant
    other = case.other
    services, ports = other.services, other.ports
    issuer = EpochIssuer(services.database, ports.clock, ports.entropy, services.memory)
    await other.agent.start(
        issuer.issue(grant.resource, "t-x:c-x", grant.authority, takeovers_seen=0, holds=lambda: True)
    )
    note = LeaderNote(grant.resource, "t-x", "c-x", grant.domain, grant.epoch + 1, 0.0)
    say(case.world, note)


async def offline(case: Case) -> None:
    case.old.set(online=False)


async def max_hold(case: Case) -> None:
    await case.world.sleep(20.0)


async def outranked(case: Case) -> None:
    case.old.set(lifecycle="hidden", visible=False)


async def unhealthy(case: Case) -> None:
    case.old.call(lambda: case.contexts[0].health(lambda: False))


async def step_down(case: Case) -> None:
    case.old.call(case.election.step_down)


async def own_word(case: Case) -> None:
    case.old.call(lambda: case.election.step_down("enough"))


async def stopped(case: Case) -> None:
    case.old.call(case.election.stop)


async def ineligible(case: Case) -> None:
    case.old.call(lambda: case.election.page_says("battery", 0.0))


async def ineligible_without_a_word(case: Case) -> None:
    FIT[0] = False
    case.old.call(case.election.look)


async def eligible_failed(case: Case) -> None:
    FIT[0] = None
    case.old.call(case.election.look)


FIT: list[bool | None] = [True]


def fit(tab: TabInfo) -> bool:
    """``eligible`` of some policies below: of the tab ``old`` alone."""
    if FIT[0] is None and tab.tab_id == "t-old":
        raise ValueError("broken")
    return bool(FIT[0]) or tab.tab_id != "t-old"


async def capability_missing(case: Case) -> None:
    case.old.call(lambda: case.old.tab.update(capabilities=[]))


Cause = Callable[[Case], Any]
CAUSES: list[tuple[str, Cause, dict[str, Any]]] = [
    ("lock-lost", lock_lost, {}),
    ("lock-stolen", lock_stolen, {}),
    ("frozen", frozen, {}),
    ("hidden", hidden, {"visible": "require"}),
    ("closing", closing, {}),
    ("stalled", stalled, {}),
    ("stalled", no_progress, {"stall_after": 10.0}),
    ("incompatible", incompatible, {"newest": True}),
    ("session-changed", session_changed, {}),
    ("session-changed", session_changed, {"session": "user"}),
    ("logout", logout, {}),
    ("logout", logout, {"session": "any"}),
    ("generation-changed", generation_changed, {}),
    ("loop-failed", loop_failed, {}),
    ("loop-finished", loop_finished, {}),
    ("lease-renewal-failed", lease_renewal_failed, {"authorities": ("indexeddb-lease",)}),
    ("storage-wiped", storage_wiped, {}),
    ("versionchange", database_deleted, {}),
    ("database-newer", database_newer, {}),
    ("newer-epoch", newer_epoch, {}),
    ("offline", offline, {"online": True}),
    ("max-hold", max_hold, {"max_hold": 15.0}),
    ("outranked", outranked, {"visible": "prefer", "cool_down": 0.5}),
    ("unhealthy", unhealthy, {}),
    ("unhealthy", unhealthy_and_failed, {}),
    ("step-down", step_down, {}),
    ("enough", own_word, {}),
    ("stopped", stopped, {}),
    ("battery", ineligible, {}),
    ("ineligible", ineligible_without_a_word, {"eligible": fit}),
    ("eligible-failed", eligible_failed, {"eligible": fit}),
    ("capability-missing", capability_missing, {"requires": {"flush"}}),
]


async def pause(member: Member, seconds: float) -> None:
    over = asyncio.Event()
    member.ports.clock.call_later(seconds, over.set)
    await over.wait()


def say(world: World, *leaders: LeaderNote) -> None:
    """A beacon of an engine that the test makes up, and that holds its lock."""
    agent = world.agent("stranger")
    ports = world.ports(agent)
    agent.start(ports.locks.acquire(engine_lock("app", 1, "e-stranger")))
    channel = agent.call(lambda: ports.channels.open(channel_name("app", 1)))
    tab = TabNote("t-x", "c-x", 1, "active", True, True, "", (), ("app:r",), 1.0)
    agent.call(lambda: channel.post(encode(Beacon("e-stranger", 1, 60.0, (tab,), leaders))))


async def down() -> None:
    raise OSError("down")


def stage(world: World, policy: dict[str, Any]) -> Case:
    facts = {"capabilities": frozenset({"flush"}), "user_session": "user", "version": "1.9"}
    old, other = join(world, "old", **facts), join(world, "other", **facts)
    contexts: list[LeaderContext] = []

    async def loop(context: LeaderContext) -> None:
        contexts.append(context)
        while (word := context.tenure.progress) not in ("fail", "finish", "break"):
            await context.sleep(0.05)
        if word == "break":
            await context.breaker("api", failures=1, resign_opens=1).call(down)
        if word == "fail":
            raise ValueError("broken")

    return Case(world, old, other, old.lead(loop=loop, **policy), contexts)


@pytest.mark.parametrize(("word", "cause", "policy"), CAUSES, ids=[f"{w}-{c.__name__}" for w, c, _ in CAUSES])
def test_each_cause_has_its_word(word: str, cause: Cause, policy: dict[str, Any]) -> None:
    FIT[0] = True
    with World(7) as world:

        async def main() -> None:
            case = stage(world, policy)
            await world.until(lambda: case.old.leading)
            standby = case.other.lead(**policy)
            await world.until(lambda: isinstance(standby.status, Waiting) and standby.status.standby)
            await world.sleep(1.0)
            steps: list[LeadershipChanged] = []
            case.old.services.events.subscribe(
                lambda event: steps.append(event) if isinstance(event, LeadershipChanged) else None
            )
            epoch = case.contexts[0].epoch
            await cause(case)
            await world.until(lambda: bool(steps), within=20.0)
            first = as_dict(steps[0])
            assert (first["from"], first["to"], first["reason"]) == ("leading", "stepping-down", word)
            assert first["resource"] == "app:r" and first["epoch"] == epoch
            info = case.old.tab.info()
            assert (first["lifecycle"], first["visible"]) == (info.lifecycle, info.visible)
            with pytest.raises(LeadershipLost, match=word):
                case.contexts[0].next_token()
            await world.until(lambda: bool(case.contexts[0].tenure.ended) and len(steps) > 1, within=20.0)

        world.run(main())


@pytest.mark.parametrize("word", ["frozen", "stalled", "closing"])
def test_what_stands_still_is_given_no_grace(word: str) -> None:
    causes = {"frozen": frozen, "stalled": stalled, "closing": closing}
    with World(2) as world:

        async def stubborn(context: LeaderContext) -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if world.loop.time() > began + 30.0:
                        raise

        async def main() -> None:
            old, other = join(world, "old"), join(world, "other")
            election = old.lead(loop=stubborn, grace=20.0)
            await world.until(lambda: old.leading)
            other.lead()
            await world.sleep(1.0)
            start = world.loop.time()
            await causes[word](Case(world, old, other, election, []))
            await world.until(lambda: other.leading, within=5.0)
            assert world.loop.time() - start < 1.0

        began = 0.0
        world.run(main())


def test_the_order_of_stepping_down() -> None:
    """Revoke, abort, wait up to the grace, release, announce."""
    with World(3) as world:
        order: list[str] = []

        async def main() -> None:
            old, other = join(world, "old"), join(world, "other")
            contexts: list[LeaderContext] = []

            async def loop(context: LeaderContext) -> None:
                contexts.append(context)
                try:
                    await context.sleep(1000.0)
                finally:
                    with pytest.raises(LeadershipLost):
                        context.next_token()
                    order.append("aborted, after the token was revoked")
                    await pause(old, 1.0)
                    assert contexts[0].tenure._hold.held
                    order.append("ended, the lock still held")

            election = old.lead(loop=loop)
            await world.until(lambda: old.leading)
            standby = other.lead()
            await world.until(lambda: isinstance(standby.status, Waiting) and standby.status.standby)
            await world.sleep(1.0)

            def roster_changed() -> None:
                now = old.ports.clock.monotonic()
                if old.services.roster.leader("app:r", now) is None and "released and announced" not in order:
                    assert not contexts[0].tenure._hold.held
                    order.append("released and announced")

            def told(event: object) -> None:
                if isinstance(event, LeadershipChanged) and event.after == "leading":
                    order.append("the next one leads")

            old.services.roster.subscribe(roster_changed)
            other.services.events.subscribe(told)
            election.subscribe(lambda state: order.append(name_of(state)))
            old.call(election.step_down)
            start = world.loop.time()
            await world.until(lambda: other.leading, within=10.0)
            assert 1.0 <= world.loop.time() - start < 1.5

        world.run(main())
        assert order[:2] == ["stepping-down", "aborted, after the token was revoked"]
        assert order[2:4] == ["ended, the lock still held", "released and announced"]
        assert sorted(order[4:]) == ["backing-off", "the next one leads"]


def test_what_a_loop_says_of_its_progress() -> None:
    with World(4) as world:

        async def main() -> None:
            case = stage(world, {})
            await world.until(lambda: case.old.leading)
            context = case.contexts[0]
            told: list[object] = []
            context.tenure.on_report(lambda: told.append(context.tenure.progress))
            for value in ("12 of 40", 0.3, 7, None, True):
                case.old.call(lambda value=value: context.progress(value))
            assert told == ["12 of 40", 0.3, 7, None, True]
            for bad in ("x" * 201, float("nan"), {"a": 1}, [1]):
                with pytest.raises(InvalidPayload, match="progress"):
                    case.old.call(lambda bad=bad: context.progress(bad))

        world.run(main())


STATES = [
    Idle("a"),
    Waiting(True, 0),
    Leading(1, 0.0),
    SteppingDown("a", 1),
    BackingOff("a", 1.0),
    Stopped("a"),
]


@given(st.lists(st.sampled_from(STATES), max_size=12))
def test_no_walk_leaves_the_table(walk: list[State]) -> None:
    """Whatever is tried: a state is reached only by a step of the table, nobody stops leading but by stepping down,
    nobody leads but from waiting, and nothing comes after the end."""
    state: State = Idle("starting")
    for target in walk:
        allowed = name_of(target) in TRANSITIONS[name_of(state)]
        if not allowed:
            with pytest.raises(InvalidTransition, match=f"'{name_of(state)}' to '{name_of(target)}'"):
                check_transition(state, target)
            continue
        check_transition(state, target)
        assert not isinstance(state, Stopped)
        assert not isinstance(target, Leading) or isinstance(state, Waiting)
        assert not isinstance(state, Leading) or isinstance(target, SteppingDown)
        assert not isinstance(state, SteppingDown) or not isinstance(target, (Leading, Waiting))
        state = target


def test_a_step_that_the_table_does_not_hold_is_refused_and_changes_nothing() -> None:
    with World(5) as world:

        async def main() -> None:
            case = stage(world, {})
            await world.until(lambda: case.old.leading)
            before = case.election.status
            told = len(case.old.services.events.recent)
            for target in (Idle("x"), Waiting(True, 0), BackingOff("x", 1.0), Stopped("x"), replace(before, epoch=9)):
                with pytest.raises(InvalidTransition):
                    case.old.call(lambda target=target: case.election.enter(target))
            assert case.election.status == before and len(case.old.services.events.recent) == told
            assert (await one_leader(world, [case.old])) is case.old

        world.run(main())


def test_who_loses_its_lock_while_it_begins_stands_again() -> None:
    """The lock ends between two looks at it, in the very step in which leadership is told."""
    with World(11) as world:

        async def main() -> None:
            member = join(world, "a")
            election = member.lead()
            losses: list[str] = []

            def lose(state: State) -> None:
                if isinstance(state, Leading) and not losses:
                    losses.append("once")
                    member.ports.locks.drop("c-a")
                    member.ports.locks.admit("c-a")

            member.call(lambda: election.subscribe(lose))
            await world.until(lambda: bool(losses) and member.leading)
            ends = [
                (event.after, event.reason)
                for event in member.services.events.recent
                if isinstance(event, LeadershipChanged) and event.before == "leading"
            ]
            assert ends == [("stepping-down", "lock-lost")]

        world.run(main())


@pytest.mark.parametrize("word", ["frozen", "stalled", "closing"])
@pytest.mark.parametrize("how", ["step_down", "stop", "eligible"])
def test_a_callers_word_takes_no_grace_away(how: str, word: str) -> None:
    with World(12) as world:

        async def main() -> None:
            old, other = join(world, "old"), join(world, "other")
            ended: list[float] = []

            async def loop(context: LeaderContext) -> None:
                try:
                    await context.sleep(1000.0)
                finally:
                    await pause(old, 1.0)
                    ended.append(world.loop.time())

            fit: list[bool | str] = [True]
            election = old.lead(loop=loop, eligible=lambda tab: fit[0])
            await world.until(lambda: old.leading)
            standby = other.lead()
            await world.until(lambda: isinstance(standby.status, Waiting) and standby.status.standby)
            await world.sleep(1.0)
            if how == "eligible":
                fit[0] = word
                old.call(election.look)
            else:
                old.call(lambda: getattr(election, how)(word))
            await world.until(lambda: other.leading, within=5.0)
            assert ended and world.loop.time() >= ended[0]

        world.run(main())


def test_a_callers_word_says_nothing_of_what_can_decide() -> None:
    with World(13) as world:

        async def main() -> None:
            member = join(world, "a")
            election = member.lead()
            await world.until(lambda: member.leading)

            async def again() -> State:
                await election.wait_for(BackingOff)
                return await election.wait_for(Leading)

            waiting = member.agent.start(again())
            member.call(lambda: election.step_down("no-authority"))
            assert isinstance(await waiting, Leading)

        world.run(main())


def test_an_eligible_that_says_unhealthy_is_no_resignation() -> None:
    """Its tab stands again as soon as the app says so: it does not rest."""
    with World(14) as world:

        async def main() -> None:
            old, other = join(world, "old"), join(world, "other")
            fit: list[bool | str] = [True]
            election = old.lead(eligible=lambda tab: fit[0])
            await world.until(lambda: old.leading)
            other.lead()
            fit[0] = "unhealthy"
            old.call(election.look)
            await one_leader(world, [other])
            assert election.status == Idle("unhealthy")
            fit[0] = True
            old.call(election.look)
            await world.until(lambda: isinstance(election.status, Waiting), within=1.0)

        world.run(main())


def test_there_is_a_test_for_each_reason_that_the_documentation_lists() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "leadership.md").read_text("utf-8")
    rows = text.partition("| reason | when |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    documented = {word for row in rows for word in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert len(documented) > 20
    assert documented - {word for word, _, _ in CAUSES} == set()
