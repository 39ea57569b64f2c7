"""How every authority must behave, by what it declares of itself. Each case is run for each authority.

Leases last short here, so that a case in a real browser takes no longer than seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from cases_kit import Case, eventually, fresh, raised, spawn

from tabhelm.authority import (
    Authority,
    Hold,
    LeaseAuthority,
    LeaseTimes,
    Rivals,
    ServerLeases,
    WebLocksAuthority,
)
from tabhelm.errors import LeadershipLost, LockWithdrawn
from tabhelm.fencing.epochs import EpochIssuer, EpochMemory, Grant
from tabhelm.fencing.schema import SCHEMA
from tabhelm.fencing.token import HighWater
from tabhelm.names import Resource
from tabhelm.ports import Database, Ports
from tabhelm.tasks import Tasks

TIMES = LeaseTimes(lease=6.0, renew_deadline=5.0, renew_every=0.6, retry=0.05, look_every=0.05)
"""A renewal may take some while where several browsers share a machine."""
Make = Callable[[Ports, Database, EpochIssuer, Tasks], Authority]


@dataclass
class Side:
    """One context's authority, and the owners that it admitted."""

    ports: Ports
    database: Database
    authority: Authority
    resource: Resource
    name: str
    times: LeaseTimes
    owners: int = 0
    holds: list[Hold] = field(default_factory=list)

    def owner(self) -> str:
        self.owners += 1
        owner = f"{self.name}{self.owners}"
        self.ports.locks.admit(owner)
        return owner

    def asking(self, owner: str | None = None) -> Awaitable[Hold]:
        owner = owner or self.owner()
        return self.authority.acquire(self.resource, owner=owner, owner_id=f"tab:{owner}")

    async def acquire(self, owner: str | None = None) -> Hold:
        hold = await self.asking(owner)
        self.holds.append(hold)
        assert hold.held and hold.lost is None, "what was acquired is held"
        return hold

    async def begun(self, owner: str | None = None) -> tuple[Hold, Grant]:
        hold = await self.acquire(owner)
        grant = await hold.begin()
        assert grant is not None, "a fenced authority issues an epoch"
        return hold, grant


Body = Callable[[Side, Side], Coroutine[Any, Any, None]]


def web_locks(ports: Ports, database: Database, issuer: EpochIssuer, tasks: Tasks) -> Authority:
    return WebLocksAuthority(ports.locks, issuer, 1, Rivals(database, issuer, ports.locks, ports.clock, TIMES))


def indexeddb_lease(ports: Ports, database: Database, issuer: EpochIssuer, tasks: Tasks) -> Authority:
    return LeaseAuthority(database, issuer, ports.locks, ports.clock, ports.entropy, tasks, 1, TIMES)


LEASES = "/leases"
"""Where the lease service is: in the simulated network, and at the origin of the real pages."""


def server_lease(ports: Ports, database: Database, issuer: EpochIssuer, tasks: Tasks) -> Authority:
    beside = LeaseAuthority(database, issuer, ports.locks, ports.clock, ports.entropy, tasks, 1, TIMES)
    return ServerLeases(beside.tools, beside.rivals, ports.http, ports.entropy, 1).at(LEASES)


def authority_cases(label: str, make: Make, times: LeaseTimes = TIMES) -> list[Case]:
    """All cases for this authority."""

    def case(body: Body) -> Case:
        async def run(here: Ports, there: Ports) -> None:
            failures: list[str] = []
            tasks = Tasks(lambda name, error: failures.append(f"{name}: {error!r}"))
            name = fresh(here, "authority")
            resource = Resource(f"conformance-{here.entropy.token_bytes(8).hex()}", "job")
            sides = []
            for side, ports in (("a", here), ("b", there)):
                database = ports.databases.database(name, SCHEMA)
                issuer = EpochIssuer(database, ports.clock, ports.entropy, EpochMemory())
                sides.append(Side(ports, database, make(ports, database, issuer, tasks), resource, side, times))
            try:
                await body(*sides)
            finally:
                for side in sides:
                    for hold in side.holds:
                        hold.release()
                await tasks.close()
                for side in sides:
                    side.database.close()
            assert failures == [], failures

        return Case(f"{label}_{body.__name__}", run)

    return [case(body) for body in BODIES]


# -- what each one must do --------------------------------------------------------------------------------------------


async def declares_what_can_be_true(here: Side, there: Side) -> None:
    said = here.authority.guarantees
    assert said == there.authority.guarantees
    if said.advisory:
        assert not (said.exclusive or said.fenced or said.durable), "hearsay decides nothing"
    else:
        assert said.exclusive and said.fenced
    assert said.reach in ("tabs", "devices")


async def what_is_released_ends_once_and_is_told(here: Side, there: Side) -> None:
    hold, told = await here.acquire(), []
    hold.on_end(told.append)
    assert told == []
    hold.release()
    hold.release()
    assert not hold.held and hold.lost is not None, "it ends before release returns"
    await eventually(here.ports, lambda: len(told) == 1, "its end is told")
    await raised(LeadershipLost, hold.check())


async def an_owner_that_may_not_ask_is_refused(here: Side, there: Side) -> None:
    await raised(LockWithdrawn, here.asking("stranger"))


async def the_next_one_waits_until_it_is_released(here: Side, there: Side) -> None:
    first = await here.acquire()
    waiting = spawn(there.acquire())
    if not there.authority.guarantees.exclusive:
        await waiting
        return
    await here.ports.clock.sleep(1.2 * here.times.lease)  # longer than one lasts that nobody renews
    assert not waiting.done(), "two holders at once"
    assert first.held, "who goes on is not robbed"
    first.release()
    assert (await waiting).held


async def each_grant_has_a_higher_epoch(here: Side, there: Side) -> None:
    if not here.authority.guarantees.fenced:
        assert await (await here.acquire()).begin() is None
        return
    epochs = []
    for side in (here, there, here, here):
        hold, grant = await side.begun()
        assert (grant.resource, grant.authority) == (side.resource.token_resource, side.authority.name)
        epochs.append(grant.epoch)
        await hold.check()
        hold.release()
    assert epochs == sorted(set(epochs)), epochs


async def a_request_that_was_taken_back_leaves_nothing(here: Side, there: Side) -> None:
    first = await here.acquire()
    waiting = spawn(there.acquire())
    await here.ports.clock.sleep(0.1)
    if there.authority.guarantees.exclusive:
        waiting.cancel()
        await raised(asyncio.CancelledError, waiting)
    first.release()
    asking = spawn(here.acquire())
    await eventually(here.ports, asking.done, "it is free again", within=2 * here.times.lease + 1.0)
    await asking


async def a_request_cancelled_at_any_moment_leaves_nothing(here: Side, there: Side) -> None:
    for pause in (0.0, 0.001, 0.002, 0.004, 0.008, 0.016):
        asking = spawn(here.asking())
        await here.ports.clock.sleep(pause)
        asking.cancel()
        (outcome,) = await asyncio.gather(asking, return_exceptions=True)
        if not isinstance(outcome, BaseException):
            outcome.release()
        (await there.acquire()).release()


async def whose_page_goes_leads_no_more(here: Side, there: Side) -> None:
    owner = here.owner()
    hold = await here.acquire(owner)
    here.ports.locks.drop(owner)
    assert not hold.held and hold.lost == "lock-lost", "before drop has returned"
    await raised(LeadershipLost, hold.begin()) if here.authority.guarantees.fenced else None
    hold.release()
    assert (await there.acquire()).held


async def whose_page_goes_while_it_waits_is_told(here: Side, there: Side) -> None:
    if not here.authority.guarantees.exclusive:
        return
    await here.acquire()
    owner = there.owner()
    waiting = spawn(there.asking(owner))
    await there.ports.clock.sleep(0.1)
    there.ports.locks.drop(owner)
    await raised(LockWithdrawn, waiting)


async def a_newer_epoch_in_the_store_is_seen_by_check(here: Side, there: Side) -> None:
    if not here.authority.guarantees.fenced:
        return
    hold, grant = await here.begun()
    await hold.check()
    issuer = EpochIssuer(there.database, there.ports.clock, there.ports.entropy, EpochMemory())
    await issuer.issue(grant.resource, "somebody", grant.authority, takeovers_seen=None, holds=lambda: True)
    lost = await raised(LeadershipLost, hold.check())
    assert getattr(lost, "reason", None) == "newer-epoch"


async def it_goes_on_above_a_receivers_mark(here: Side, there: Side) -> None:
    if not here.authority.guarantees.fenced:
        return
    hold, grant = await here.begun()
    above = await hold.reissue_above(HighWater(grant.epoch + 40, 7, "x"))
    assert above.epoch == grant.epoch + 41
    await here.ports.clock.sleep(2 * here.times.renew_every)
    await hold.check()


async def force_is_for_what_does_not_expire_by_itself(here: Side, there: Side) -> None:
    said = here.authority.guarantees
    if not said.fenced:
        return
    hold, grant = await here.begun()
    owner = there.owner()
    taking = there.authority.take_over(there.resource, owner=owner, owner_id=f"tab:{owner}", wanted=lambda: True)
    if said.timeout_based:
        await raised(LockWithdrawn, taking)
        assert hold.held
        return
    robber = await taking
    there.holds.append(robber)
    taken = await robber.begin()
    assert taken is not None and taken.epoch > grant.epoch
    await eventually(here.ports, lambda: hold.lost == "lock-stolen", "the robbed one is told")


async def unwanted_force_takes_nothing(here: Side, there: Side) -> None:
    if not here.authority.guarantees.fenced:
        return
    hold = await here.acquire()
    owner = there.owner()
    await raised(
        LockWithdrawn,
        there.authority.take_over(there.resource, owner=owner, owner_id=f"tab:{owner}", wanted=lambda: False),
    )
    assert hold.held


async def who_cannot_renew_gives_up_before_anybody_takes_it(here: Side, there: Side) -> None:
    if not here.authority.guarantees.timeout_based:
        return
    hold, grant = await here.begun()
    waiting = spawn(there.begun())
    await here.ports.clock.sleep(3 * here.times.renew_every)
    here.database.close()  # from now on its renewals fail
    told: list[tuple[str, bool]] = []
    hold.on_end(lambda reason: told.append((reason, waiting.done())))
    await eventually(here.ports, lambda: bool(told), "the holder gives up", within=3 * here.times.lease)
    assert told == [("lease-renewal-failed", False)], told
    successor, next_grant = await waiting
    assert successor.held and next_grant.epoch > grant.epoch


async def renewals_go_on_with_greater_numbers(here: Side, there: Side) -> None:
    if not here.authority.guarantees.timeout_based:
        return
    hold: Any = await here.acquire()
    numbers = [hold.renewal]
    for _ in range(3):
        await eventually(here.ports, lambda: hold.renewal > numbers[-1], "it is renewed", within=here.times.lease)
        numbers.append(hold.renewal)
    hold.release()
    successor: Any = await there.acquire()
    assert successor.renewal > numbers[-1], "greater than all before, under any holder"


BODIES: list[Body] = [
    declares_what_can_be_true,
    what_is_released_ends_once_and_is_told,
    an_owner_that_may_not_ask_is_refused,
    the_next_one_waits_until_it_is_released,
    each_grant_has_a_higher_epoch,
    a_request_that_was_taken_back_leaves_nothing,
    a_request_cancelled_at_any_moment_leaves_nothing,
    whose_page_goes_leads_no_more,
    whose_page_goes_while_it_waits_is_told,
    a_newer_epoch_in_the_store_is_seen_by_check,
    it_goes_on_above_a_receivers_mark,
    force_is_for_what_does_not_expire_by_itself,
    unwanted_force_takes_nothing,
    who_cannot_renew_gives_up_before_anybody_takes_it,
    renewals_go_on_with_greater_numbers,
]
CASES = [
    *authority_cases("web_locks", web_locks),
    *authority_cases("indexeddb_lease", indexeddb_lease),
    *authority_cases("server_lease", server_lease, TIMES),
]
