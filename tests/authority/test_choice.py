"""What decides: the policy's list in order, told when it is not the first; nothing silently weaker; never two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lease_kit import LEASE, Crew, fencing

from kit import Member, join
from tabhelm.authority import Guarantees, Hold
from tabhelm.election import LeadershipPolicy
from tabhelm.errors import InvalidPolicy, LockWithdrawn, NoAuthority, NotFenced
from tabhelm.fencing.epochs import Grant
from tabhelm.fencing.token import HighWater
from tabhelm.leadership import BackingOff, Idle, LeaderContext, Leading
from tabhelm.names import Resource
from tabhelm.observe import Degraded, EpochIssued, LoopFailed, as_dict
from tabhelm.ports import Ports
from tabhelm.simulated import World

WEB_LOCKS = ("web-locks",)


def degraded(member: Member) -> list[Degraded]:
    return [event for event in member.services.events.recent if isinstance(event, Degraded)]


# -- the list ---------------------------------------------------------------------------------------------------------


def test_the_default_is_web_locks_then_the_lease_and_nothing_advisory() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            known = member.services.elections.authorities.known
            names = LeadershipPolicy().authorities
            assert names == ("web-locks", "indexeddb-lease")
            assert all(not known[name].guarantees.advisory and known[name].guarantees.fenced for name in names)
            member.lead()
            await world.until(lambda: member.leading)
            assert [grant.authority for grant in member.grants] == ["web-locks"] and degraded(member) == []

        world.run(main())


def test_without_web_locks_the_lease_decides_and_an_event_says_why() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            await world.sleep(1.0)
            world.faults.locks_denied = True
            election = member.lead()
            await world.until(lambda: member.leading)
            assert [grant.authority for grant in member.grants] == ["indexeddb-lease"]
            (event,) = degraded(member)
            wire = as_dict(event)
            assert (wire["type"], wire["from"], wire["to"]) == ("degraded", "web-locks", "indexeddb-lease")
            assert "has no Web Locks" in wire["reason"]
            member.call(election.step_down)
            await world.until(lambda: len(member.grants) == 2)
            assert len(degraded(member)) == 1, "told once"
            world.faults.locks_denied = False
            member.call(election.step_down)
            await world.until(lambda: [each.authority for each in member.grants][2:] == ["web-locks"])
            assert len(degraded(member)) == 1, "the first on the list is nothing to warn of"

        world.run(main())


@pytest.mark.parametrize("names", [WEB_LOCKS, ("web-locks", "indexeddb-lease"), LEASE])
def test_when_nothing_is_possible_it_is_said_what_is_missing(names: tuple[str, ...]) -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            await world.sleep(1.0)
            world.faults.locks_denied = world.faults.storage_denied = True
            election = member.lead(authorities=names)
            with pytest.raises(NoAuthority) as raised:
                await member.agent.start(election.wait_for(Leading))
            for name in names:
                assert f"{name}: " in str(raised.value)
            assert "'app:r'" in str(raised.value) and "may not use IndexedDB" in str(raised.value)
            status = election.status
            assert isinstance(status, BackingOff) and status.reason == "no-authority"
            assert [event.after for event in degraded(member)][-1] is None
            told = len(degraded(member))
            await world.sleep(60.0)
            assert len(degraded(member)) == told, "told once"
            world.faults.locks_denied = world.faults.storage_denied = False
            await world.until(lambda: member.leading)

        world.run(main())


def test_a_store_that_hangs_is_no_reason_for_something_weaker() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            world.faults.storage_hangs = True
            election = member.lead()
            await world.until(lambda: isinstance(election.status, BackingOff), within=30.0)
            assert degraded(member) == []

        world.run(main())


def test_names_that_nobody_knows_are_refused() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            with pytest.raises(InvalidPolicy, match="authorities: 'web-lock' is not known; known are 'web-locks', "):
                member.lead(authorities=("web-lock",))

        world.run(main())


@pytest.mark.parametrize("value", ["web-locks", [], [7], ["web-locks", "web-locks"], {"web-locks": 1}, [""]])
def test_what_is_no_list_of_names_is_refused(value: object) -> None:
    with pytest.raises(InvalidPolicy, match="authorities"):
        LeadershipPolicy.from_wire({"authorities": value})
    assert LeadershipPolicy.from_wire({"authorities": ["indexeddb-lease"]}).authorities == LEASE


# -- two of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("first", [WEB_LOCKS, LEASE])
@pytest.mark.parametrize("end", ["step-down", "die"])
def test_a_second_live_authority_is_refused_and_backs_off(seed: int, first: tuple[str, ...], end: str) -> None:
    second = LEASE if first == WEB_LOCKS else WEB_LOCKS
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            old, other = crew.join("a"), crew.join("b")
            election = crew.lead(old, authorities=first)
            await crew.led(old)
            world.faults.channel_loss = 1.0  # presence would only make the other one watch
            refused = crew.lead(other, authorities=second)
            seen: set[str] = set()
            refused.subscribe(lambda state: seen.add(getattr(state, "reason", "")))
            await world.sleep(90.0)
            assert "split-authority" in seen, seen
            assert other.led == [] and old.leading and len(old.led) == 1
            if end == "die":
                old.agent.die()
            else:
                old.call(lambda: election.stop("enough"))
            await world.until(lambda: other.leading, within=90.0)
            assert other.led == [2]
            if second == WEB_LOCKS:
                assert fencing(world)["lease:app:v1:leader:r"]["released"]

        world.run(main())


@pytest.mark.parametrize("seed", range(8))
def test_both_begin_at_the_same_time_and_one_is_refused(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            world.faults.channel_loss = 1.0
            members = [crew.join(f"m{n}") for n in range(4)]
            crew.join("z").lead("other", authorities=WEB_LOCKS)  # so that the store is not empty
            await world.sleep(2.0)
            for n, member in enumerate(members):
                crew.lead(member, authorities=(WEB_LOCKS, LEASE)[n % 2])
            await world.until(lambda: any(member.leading for member in members))
            for _ in range(200):
                await world.sleep(0.25)
                assert sum(member.leading for member in members) == 1

        world.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_a_lock_that_cannot_be_seen_is_respected_for_the_time_of_a_lease(seed: int) -> None:
    """A page that is no secure context, beside one that is: it cannot ask whether the lock is held."""
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            old, other = crew.join("a"), crew.join("b")
            crew.lead(old, authorities=WEB_LOCKS)
            await crew.led(old)
            old.agent.die()
            world.faults.locks_denied = True
            crew.lead(other)
            took = await crew.led(other, within=90.0)
            assert 13.0 < took < 60.0 and other.led == [2]

        world.run(main())


# -- an advisory one --------------------------------------------------------------------------------------------------


class HearsayHold:
    """Held because it says so."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self._told: Callable[[str], None] = lambda reason: None

    @property
    def held(self) -> bool:
        return self.lost is None

    def on_end(self, callback: Callable[[str], None]) -> None:
        self._told = callback

    def release(self) -> None:
        if self.lost is None:
            self.lost = "lock-lost"
            self._told(self.lost)

    async def begin(self) -> Grant | None:
        return None

    async def check(self) -> None:
        raise NotFenced("hearsay cannot be checked")

    async def reissue_above(self, high_water: HighWater) -> Grant:
        raise NotFenced("hearsay has no epochs")


class Hearsay:
    """A fake advisory authority: whoever asks has it."""

    name = "hearsay"
    guarantees = Guarantees(
        exclusive=False, durable=False, fenced=False, timeout_based=False, reach="tabs", advisory=True
    )

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def acquire(self, resource: Resource, *, owner: str, owner_id: str) -> Hold:
        if not self._ports.locks.admitted(owner):
            raise LockWithdrawn(resource.token_resource, "not admitted")
        return HearsayHold()

    async def take_over(self, resource: Resource, *, owner: str, owner_id: str, wanted: Callable[[], bool]) -> Hold:
        raise NotFenced("hearsay knows no force")


def with_hearsay(world: World, name: str) -> Member:
    member = join(world, name)
    member.services.elections.authorities.known[Hearsay.name] = Hearsay(member.ports)
    return member


def test_what_is_only_advised_gives_no_tokens() -> None:
    with World(1) as world:

        async def main() -> None:
            member = with_hearsay(world, "a")
            seen: list[Any] = []

            async def loop(context: LeaderContext) -> None:
                seen.append(context.epoch)
                for ask in (context.next_token, lambda: context.headers("op")):
                    with pytest.raises(NotFenced, match="issues no epochs"):
                        ask()
                seen.append("refused")
                await context.sleep(1e6)

            election = member.lead(loop=loop, authorities=("hearsay",))
            await world.until(lambda: len(seen) == 2)
            assert seen == [None, "refused"]
            assert election.status == Leading(None, election.status.since)  # type: ignore[union-attr]
            assert not [event for event in member.services.events.recent if isinstance(event, EpochIssued)]

        world.run(main())


def test_a_fenced_queue_is_not_flushed_on_advice() -> None:
    with World(1) as world:

        async def main() -> None:
            member = with_hearsay(world, "a")
            policy = LeadershipPolicy(authorities=("hearsay",))
            queue = member.call(
                lambda: member.tab.queue("mutations", endpoint="https://receiver.example/", policy=policy)
            )
            await member.agent.start(queue.enqueue({"n": 1}))
            await world.until(lambda: any(isinstance(e, LoopFailed) for e in member.services.events.recent))
            (failed, *_) = [e for e in member.services.events.recent if isinstance(e, LoopFailed)]
            assert failed.error.startswith("NotFenced: ")
            stored = world.storage.dump("tabhelm:app")
            assert len(stored["operations"]) == 1 and stored["claims"] == []

        world.run(main())


def test_a_barrier_needs_tokens() -> None:
    with World(1) as world:

        async def main() -> None:
            member = with_hearsay(world, "a")
            election = member.lead(authorities=("hearsay",), fence="https://receiver.example/")
            await world.until(lambda: isinstance(election.status, BackingOff))
            assert isinstance(election.status, BackingOff) and election.status.reason == "not-fenced"
            assert member.led == []

        world.run(main())


def test_force_is_never_used_on_advice() -> None:
    with World(1) as world:

        async def main() -> None:
            member = with_hearsay(world, "a")
            election = member.lead(authorities=("hearsay",))
            await world.until(lambda: not isinstance(election.status, Idle))
            assert not member.call(lambda: election.claim(100.0))

        world.run(main())
