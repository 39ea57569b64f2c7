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


def robber(lab: Lab, name: str) -> Member:
    """A tab that steals."""
    member = join(lab.world, name)
    elections = member.services.elections
    issuer: EpochIssuer = elections.authority._issuer  # type: ignore[attr-defined]
    member.services.elections = replace(elections, authority=Robber(member.ports.locks, issuer, 1))
    return member


def flushing(member: Member) -> Any:
    return member.call(lambda: member.tab.queue("mutations", endpoint=OPERATIONS))


def leads(member: Member) -> Callable[[], bool]:
    return lambda: any(isinstance(each.status, Leading) for each in member.tab.elections.values())


def robbed_and_deaf(lab: Lab) -> Any:
    """The holder of the queue hears of the theft seconds later, and goes on claiming and sending until then."""

    async def play() -> None:
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
                first.ports.locks.inbox.send(lambda: None)  # type: ignore[attr-defined]
                lab.world.faults.lock_delay = (1.0, 6.0)
                theirs = flushing(second)
            if lab.rng.random() < 0.5:
                await enqueue(first, queue)
            if theirs is not None and lab.rng.random() < 0.5:
                await enqueue(second, theirs)
            await lab.sleep(lab.rng.uniform(0.0, 0.5))
        lab.world.faults.lock_delay = (0.0, 0.003)
        await lab.sleep(90.0)

    return play()


@seeds(20)
def test_a_robbed_leader_that_has_not_heard_of_it_harms_nothing(seed: int) -> None:
    lab = Lab(seed, faults=Faults(http_delay=(0.001, 0.3)))
    lab.run(robbed_and_deaf(lab))
    assert lab.drained()


def stalled_before_its_epoch(lab: Lab) -> Any:
    """The first one has the lock and no epoch yet; while it stalls, the second one takes over by force."""

    async def play() -> None:
        first = join(lab.world, "a")
        blocker = join(lab.world, "c")
        blocking = blocker.lead()
        await lab.until(leads(blocker))
        first.lead()
        await lab.sleep(3.0)
        blocker.call(blocking.stop)
        await lab.sleep(lab.rng.uniform(0.0, 0.02))
        first.agent.hang(lab.rng.uniform(5.0, 10.0))
        lab.world.faults.lock_delay = (0.0, 4.0)
        second = robber(lab, "b")
        second.lead()
        await lab.until(leads(second), within=90.0)
        await lab.sleep(30.0)
        assert lab.world.loop.time() > 0

    return play()


def issued_after_the_takeover(lab: Lab) -> list[str]:
    """Who was granted an epoch after the robber, without having asked for the lock anew."""
    owners = [owner for _, _, _, owner in lab.order]
    after = owners[owners.index("t-b:c-b") + 1 :] if "t-b:c-b" in owners else []
    return [owner for owner in after if owner != "t-b:c-b"]


@seeds(40)
def test_a_takeover_while_the_holder_stalls_before_its_epoch(seed: int) -> None:
    lab = Lab(seed)
    lab.run(stalled_before_its_epoch(lab))
    assert issued_after_the_takeover(lab) == [], f"seed {seed}"
    assert lab.order[-1][3] == "t-b:c-b"
