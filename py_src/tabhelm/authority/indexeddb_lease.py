"""A lease in IndexedDB decides who holds: for contexts without Web Locks.

One transaction acquires it and issues the epoch, another one renews it, a third gives it back. Whether it has expired,
each observer judges by its own clock, between changes of the record that it saw itself: no two clocks are compared. The
holder counts from before its renewal was written, and only up to ``renew_deadline``; an observer counts from after it
saw the renewal, for the whole lease. So the holder has given up before anybody takes over, while their clocks do not
differ in speed by more than the third that lies between; beyond that, the epochs protect.

A dead holder is noticed by expiry alone, and those who wait must look again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tabhelm.authority.base import Guarantees
from tabhelm.authority.lease_hold import LeaseHold
from tabhelm.authority.lease_tools import LeaseTimes, LeaseTools, in_time
from tabhelm.authority.rivals import Rivals
from tabhelm.errors import LeadershipLost, LockWithdrawn
from tabhelm.fencing.epochs import EpochIssuer
from tabhelm.fencing.leases import LEASE, write_lease
from tabhelm.names import Resource
from tabhelm.ports import Clock, Database, Entropy, Locks, Transaction
from tabhelm.tasks import Tasks, within

NAME = LEASE
FIRST_PAUSE = 0.1
"""Seconds until the second look after news; each pause is twice the one before, up to ``look_every``."""
_CLOSING = 2.0


class _Taken(Exception):
    """Somebody holds it, as far as we know: the transaction is given up."""


class LeaseAuthority:
    """Leases in the app's database. One for each context."""

    name = NAME
    guarantees = Guarantees(exclusive=True, durable=True, fenced=True, timeout_based=True, reach="tabs")

    def __init__(
        self,
        database: Database,
        issuer: EpochIssuer,
        locks: Locks,
        clock: Clock,
        entropy: Entropy,
        tasks: Tasks,
        protocol: int,
        times: LeaseTimes | None = None,
    ) -> None:
        self._hidden = False
        self.tools = LeaseTools(database, issuer, locks, clock, tasks, times or LeaseTimes(), lambda: self._hidden)
        self._entropy = entropy
        self._protocol = protocol
        self.rivals = Rivals(database, issuer, locks, clock, self.tools.times)
        self._waiting: dict[asyncio.Event, str] = {}
        """Whose resource (by its name in tokens) there are news of."""
        self._leaders: frozenset[tuple[str, int]] = frozenset()

    def look(self, leaders: frozenset[tuple[str, int]], hidden: bool = False) -> None:
        """Who is said to lead what, in which epoch. At a change whoever waits for that looks at once, and more often
        for a moment: a hint, without which it only takes longer.

        ``hidden``: we run in a page that is, so that the browser may hold our timers back to one a minute.
        """
        changed = {resource for resource, _ in leaders ^ self._leaders}
        self._leaders = leaders
        for news, resource in self._waiting.items():
            if resource in changed:
                news.set()
        if hidden != self._hidden:
            self._hidden = hidden
            for hold in list(self.tools.holds):
                hold.hidden_or_shown()

    def judge(self) -> None:
        """Something happened to a page: what it may not hold any more has ended when this returns.

        A page may freeze and be thawed again before any task runs. To look then only would be to see nothing.
        """
        for hold in list(self.tools.holds):
            hold.lost  # noqa: B018 - to look is to judge

    async def acquire(self, resource: Resource, *, owner: str, owner_id: str) -> LeaseHold:
        pause, longest = 0.0, self.tools.times.look_every
        news = asyncio.Event()
        self._waiting[news] = resource.token_resource
        try:
            while True:
                news.clear()  # before the look: what comes during it may be newer than what it sees
                hold = await self._claim(resource, owner, owner_id)
                if hold is not None:
                    return hold
                pause = 0.0 if await self._pause(news, pause) else min(longest, max(FIRST_PAUSE, 2 * pause))
        finally:
            del self._waiting[news]

    async def take_over(
        self, resource: Resource, *, owner: str, owner_id: str, wanted: Callable[[], bool]
    ) -> LeaseHold:
        """Never by force: a holder that stands still loses its lease by itself, and one that renews it is alive."""
        name = resource.lock(self._protocol)
        hold = await self._claim(resource, owner, owner_id) if wanted() else None
        if hold is None:
            raise LockWithdrawn(name, "its lease is renewed, or has not expired yet")
        return hold

    async def _pause(self, news: asyncio.Event, pause: float) -> bool:
        """Wait; whether there was news meanwhile."""
        over = False

        def end() -> None:
            nonlocal over
            over = True
            news.set()

        timer = self.tools.clock.call_later(max(FIRST_PAUSE, pause), end)
        try:
            await news.wait()
            return not over
        finally:
            timer.cancel()

    # -- one attempt --------------------------------------------------------------------------------------------------

    async def _claim(self, resource: Resource, owner: str, owner_id: str) -> LeaseHold | None:
        """Acquire it if it is free, in one transaction with its epoch. ``None``: somebody has it."""
        tools, name = self.tools, resource.lock(self._protocol)
        self._require_admitted(name, owner)
        looking = self.rivals.look(resource, name, owner, owner_id)
        seen = await in_time(tools.clock, looking, f"the lease of {name!r} could not be read")
        if not seen.free:
            return None
        hold = LeaseHold(tools, name, resource.token_resource, owner, owner_id, self._entropy.token_bytes(8).hex())
        since = tools.clock.monotonic()

        async def first(tx: Transaction) -> None:
            number = await self.rivals.free(tx, resource.token_resource, name, owner_id, seen.gone)
            if number is None:
                raise _Taken
            await write_lease(tx, name, hold.claimed(number), tools.clock)

        issuing = tools.issuer.issue(
            resource.token_resource,
            owner_id,
            NAME,
            takeovers_seen=None,
            holds=lambda: tools.locks.admitted(owner),
            first=first,
        )
        try:
            grant = await in_time(tools.clock, issuing, f"no lease of {name!r} was durable")
        except _Taken:
            return None
        except LeadershipLost:
            self._require_admitted(name, owner)
            raise
        except BaseException:
            hold.release()  # it is not known whether it became ours
            raise
        hold.start(grant, since)
        self.rivals.forget(name)
        if not hold.held:
            hold.release()  # the page left, or it took too long: whoever waits too shall not wait for it to expire
            raise LockWithdrawn(name, f"it came too late for owner {owner!r}")
        return hold

    def _require_admitted(self, name: str, owner: str) -> None:
        if not self.tools.locks.admitted(owner):
            raise LockWithdrawn(name, f"owner {owner!r} is not admitted")

    async def close(self) -> None:
        """Let what is being given back be written: nobody shall have to wait until it expires."""

        async def settled() -> None:
            await asyncio.gather(*self.tools.giving_up, return_exceptions=True)

        try:
            await within(self.tools.clock, _CLOSING, settled())
        except TimeoutError:
            pass
