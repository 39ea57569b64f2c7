"""Takeovers by force, at the level of the authority: tabs without pages, one of which steals the lock.

The holder hears of the theft late (or hangs); everything that it does until then must be harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lab import OPERATIONS, Lab, seeds

from kit import Member, join
from tabhelm.authority.web_locks import NAME, WebLocksAuthority, WebLocksHold
from tabhelm.fencing.epochs import EpochIssuer, Grant
from tabhelm.leadership import Leading
from tabhelm.names import Resource
from tabhelm.ports import Clock
from tabhelm.simulated import Faults


class ForcedHold(WebLocksHold):
    """A stolen lock: its epoch says so."""

    async def begin(self) -> Grant:
        self._require_held()
        self._grant = await self._issuer.issue(
            self._resource,
            self._owner_id,
            NAME,
            takeovers_seen=self._takeovers,
            takeover=True,
            holds=lambda: self._lock.held,
        )
        self._require_held()
        return self._grant


class Robber(WebLocksAuthority):
    """Steals whatever it is asked to acquire."""

    async def acquire(self, resource: Resource, *, owner: str, owner_id: str) -> WebLocksHold:
        takeovers = await self._issuer.takeovers(resource.token_resource)
        lock = await self._locks.acquire(resource.lock(self._protocol), owner=owner, steal=True)
        assert lock is not None
        return ForcedHold(resource, lock, self._issuer, owner_id, takeovers)


def issuer(member: Member) -> EpochIssuer:
    found: EpochIssuer = member.services.elections.authority._issuer  # type: ignore[attr-defined]
    return found


def robber(lab: Lab, name: str) -> Member:
    """A tab that steals."""
    member = join(lab.world, name)
    elections = member.services.elections
    authority = Robber(member.ports.locks, issuer(member), 1)
    member.services.elections = replace(elections, authority=authority)
    return member


def flushing(member: Member) -> Any:
    return member.call(lambda: member.tab.queue("mutations", endpoint=OPERATIONS))


def leads(member: Member) -> Callable[[], bool]:
    return lambda: any(isinstance(each.status, Leading) for each in member.tab.elections.values())


async def robbed_and_deaf(lab: Lab) -> None:
    """The holder of the queue hears of the theft seconds later, and goes on claiming and sending until then."""

    first = join(lab.world, "a")
    queue = flushing(first)
    await lab.until(leads(first))
    second = robber(lab, "b")
    theirs: Any = None
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
            theirs = flushing(second)
        if lab.rng.random() < 0.5:
            await enqueue(first, queue)
        if theirs is not None and lab.rng.random() < 0.5:
            await enqueue(second, theirs)
        await lab.sleep(lab.rng.uniform(0.0, 0.5))
    lab.world.faults.lock_delay = (0.0, 0.003)
    await lab.sleep(90.0)


@seeds(20)
def test_a_robbed_leader_that_has_not_heard_of_it_harms_nothing(seed: int) -> None:
    lab = Lab(seed, faults=Faults(http_delay=(0.001, 0.3)))
    lab.run(robbed_and_deaf(lab))
    assert lab.drained()


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
    first, second = join(lab.world, "a"), robber(lab, "b")
    authority = Staller(first.ports.locks, issuer(first), 1)
    authority.clock, authority.pause = first.ports.clock, lambda: lab.rng.uniform(0.0, 10.0)
    first.services.elections = replace(first.services.elections, authority=authority)
    first.lead()
    await lab.sleep(2.0)
    news: Any = first.ports.locks
    news.inbox._last = lab.world.loop.time() + lab.rng.uniform(0.0, 15.0)
    await lab.sleep(lab.rng.uniform(0.0, 3.0))
    second.lead()
    await lab.sleep(60.0)
    assert leads(second)()


def issued_after_the_takeover(lab: Lab) -> list[str]:
    """Who was granted an epoch after the robber, without having asked for the lock anew."""
    owners = [owner for _, _, _, owner in lab.order]
    after = owners[owners.index("t-b:c-b") + 1 :] if "t-b:c-b" in owners else []
    return [owner for owner in after if owner != "t-b:c-b"]


@seeds(40)
def test_a_takeover_while_the_holder_stalls_before_its_epoch(seed: int) -> None:
    lab = Lab(seed)
    lab.run(stalled_before_its_epoch(lab))
    assert "t-b:c-b" in {owner for _, _, _, owner in lab.order}
    assert issued_after_the_takeover(lab) == [], f"seed {seed}"
