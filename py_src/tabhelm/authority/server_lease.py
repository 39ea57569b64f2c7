"""A lease service decides who holds, among all devices of one user.

The holder renews at the service, and counts by its own clocks from before each request was sent: no clock of the
service is believed. What it could not renew in time it does not hold any more. Its tokens are the service's: another
domain, other epochs than those of this browser's store. There it leaves its trace too (an epoch of the store's own, and
a lease that is renewed with each renewal at the service), so that no other authority of this browser decides beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from tabhelm.app_headers import HeaderSource
from tabhelm.authority.base import Guarantees
from tabhelm.authority.lease_client import LONGEST, Given, LeaseClient, Taken
from tabhelm.authority.lease_hold import LeaseHold
from tabhelm.authority.lease_tools import LeaseTools, in_time
from tabhelm.authority.rivals import SERVER_LEASE, Rivals
from tabhelm.errors import LeadershipLost, LeaseRefused, LockWithdrawn, SplitAuthority, Unreachable
from tabhelm.fencing.epochs import EpochRecord, Grant
from tabhelm.fencing.leases import write_lease
from tabhelm.fencing.token import FencingToken, HighWater
from tabhelm.names import Resource
from tabhelm.ports import Entropy, Http, Transaction

NAME = SERVER_LEASE
FIRST_PAUSE = 0.1
"""Seconds until the second look; each pause is twice the one before, up to the longest."""
_TAKEN = ("newer-epoch", "storage-wiped")
"""It is not ours to give back."""

OnTrouble = Callable[[str, str | None], None]
"""Told ``(resource, what)`` when the service is of no use, once; ``None`` when it is again."""


@dataclass(slots=True)
class ServerLeases:
    """What the leases at all services share in one context. ``at`` gives the authority of one service."""

    tools: LeaseTools
    rivals: Rivals
    http: Http
    entropy: Entropy
    protocol: int
    on_trouble: OnTrouble = lambda resource, what: None
    turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Of the tabs here that want the same, one asks: the others wait for it. Forgotten once nobody asks."""
    troubled: set[str] = field(default_factory=set)

    name = NAME
    guarantees = Guarantees(exclusive=True, durable=True, fenced=True, timeout_based=True, reach="devices")

    def at(self, url: str, headers: HeaderSource | None = None) -> ServerLeaseAuthority:
        return ServerLeaseAuthority(self, url, headers)

    async def told(self, resource: str, asking: Awaitable[Given | Taken]) -> Given | Taken:
        """Its answer; a change for the worse or the better is told."""
        try:
            answer = await asking
        except (Unreachable, LeaseRefused) as trouble:
            self._tell(resource, str(trouble))
            raise
        self._tell(resource, None)
        return answer

    def _tell(self, resource: str, what: str | None) -> None:
        if (resource in self.troubled) != (what is not None):
            (self.troubled.discard if what is None else self.troubled.add)(resource)
            self.on_trouble(resource, what)


class ServerLeaseHold(LeaseHold):
    """``candidate`` names this hold alone, so that a late answer or a late release can never be another one's."""

    def __init__(
        self, shared: ServerLeases, client: LeaseClient, lock_name: str, owner: str, candidate: str, hold: str
    ) -> None:
        super().__init__(shared.tools, lock_name, client.resource, owner, candidate, hold)
        self._shared = shared
        self._client = client
        self._fence: Grant | None = None
        self._believed = 0.0
        self._ahead = 0.0
        """What the wall clock showed more than the monotonic one, before we asked last."""
        self._until_wall = 0.0

    async def claim(self, wait: float, gone: EpochRecord | None) -> Taken | None:
        """Acquire it, waiting for so many seconds if it is taken; ``gone``: what ``look_beside`` found.

        Raises:
            SplitAuthority, LockWithdrawn, Unreachable, LeaseRefused, DatabaseError: see ``acquire``. It may be ours
                all the same: give it back.
        """
        tools, shared = self._tools, self._shared
        since = self._ask_since()
        seconds = tools.times.length(self._hidden)
        asking = self._client.ask(self._owner_id, seconds, timeout=wait + LONGEST, wait=wait)
        answer = await shared.told(self._client.resource, asking)
        if isinstance(answer, Taken):
            return answer
        if tools.clock.monotonic() - since > tools.times.retry:
            since = self._ask_since()  # for as long as we waited we have not had it
            answer = await self._ask()
        self._fence = _grant(answer.token)
        self._note(answer)

        async def first(tx: Transaction) -> None:
            number = await shared.rivals.beside(tx, self._resource, self._lock_name, gone)
            await write_lease(tx, self._lock_name, self.claimed(number), tools.clock)

        issuing = tools.issuer.issue(
            self._resource,
            self._owner_id,
            NAME,
            takeovers_seen=None,
            holds=lambda: tools.locks.admitted(self._owner),
            first=first,
        )
        self.start(await in_time(tools.clock, issuing, f"the epoch of {self._resource!r} was not durable"), since)
        return None

    async def begin(self) -> Grant:
        """The service's epoch, in the service's domain."""
        self._require_held()
        assert self._fence is not None, "begun before it was acquired"
        return self._fence

    async def check(self) -> None:
        """Renew it now: what the service said last may be over.

        Raises:
            LeadershipLost: somebody else leads.
            Unreachable, LeaseRefused: the service could not be asked; nothing is known.
        """
        self._require_held()
        try:
            await self._renew_now()
        except TimeoutError:
            self._require_held()
            raise Unreachable(f"the lease of {self._resource!r} could not be renewed in time") from None
        except LeadershipLost as lost:
            self._end(lost.reason)
            raise
        await super().check()

    async def reissue_above(self, high_water: HighWater) -> Grant:
        """Go on above a receiver's high water that the service has forgotten (it was restored from a backup)."""
        async with self._turn:
            fence = await self.begin()
            answer = await self._ask(above=high_water.epoch)
            self._require_held()
            if answer.token.domain != fence.domain or answer.token.epoch <= high_water.epoch:
                raise LeadershipLost(self._resource, "newer-epoch")
            self._fence = _grant(answer.token)
            return self._fence

    # -- its life -----------------------------------------------------------------------------------------------------

    def _ask_since(self) -> float:
        """By the monotonic clock. A device that sleeps until the answer is read must not count from its waking."""
        since = self._tools.clock.monotonic()
        self._ahead = self._tools.clock.wall() - since
        return since

    async def _renew(self) -> int:
        self._ask_since()
        answer = await self._ask()
        self._require_held()
        assert self._fence is not None
        if answer.token.domain != self._fence.domain:
            raise LeadershipLost(self._resource, "storage-wiped")
        if answer.token.epoch != self._fence.epoch:
            raise LeadershipLost(self._resource, "newer-epoch")
        self._note(answer)
        return await super()._renew()

    async def _ask(self, above: int = 0) -> Given:
        times = self._tools.times
        spare = (times.deadline(self._hidden) - times.renew_every) / 2  # so that there is time for a second attempt
        seconds = times.length(self._hidden)
        answer = await self._shared.told(
            self._client.resource,
            self._client.ask(self._owner_id, seconds, timeout=min(LONGEST, spare), renew=True, above=above),
        )
        if isinstance(answer, Taken):
            raise LeadershipLost(self._resource, "newer-epoch" if answer.holder else "storage-wiped")
        return answer

    def _note(self, answer: Given) -> None:
        # A service that gives less than was asked for is believed for less.
        times = self._tools.times
        share = min(1.0, answer.seconds / times.length(self._hidden))
        self._believed = times.deadline(self._hidden) * share

    def _deadline(self) -> float:
        return min(self._believed, super()._deadline())

    def _late(self) -> bool:
        # Some monotonic clocks stand still while the device sleeps; the service's lease does not. A wall clock that is
        # set forward ends a lease that was good: that is harmless.
        return super()._late() or self._tools.clock.wall() >= self._until_wall

    def _believe_until(self, until: float) -> None:
        self._until_wall = until + self._ahead
        super()._believe_until(until)

    def _end(self, reason: str) -> None:
        # At once, and not in a task: this may run inside the handler after which the page is gone.
        if self._ended is None and reason not in _TAKEN:
            self._client.give_back(self._owner_id)
        super()._end(reason)

    async def _give_up(self) -> None:
        if self._grant is not None:
            await super()._give_up()


class ServerLeaseAuthority:
    """The lease service at one URL."""

    name = NAME
    guarantees = ServerLeases.guarantees

    def __init__(self, shared: ServerLeases, url: str, headers: HeaderSource | None) -> None:
        self._shared = shared
        self._url = url
        self._headers = headers

    async def acquire(self, resource: Resource, *, owner: str, owner_id: str) -> ServerLeaseHold:
        """As ``Authority.acquire``.

        Raises:
            SplitAuthority: another authority of this browser decides for this resource.
            Unreachable, LeaseRefused: the service could not be asked.
        """
        times, clock = self._shared.tools.times, self._shared.tools.clock
        wait, pause = min(LONGEST, 5 * times.look_every), 0.0
        turn = self._shared.turns.setdefault((self._url, resource.token_resource), asyncio.Lock())
        async with turn:
            while True:
                began = clock.monotonic()
                found = await self._try(resource, owner, owner_id, wait)
                if not isinstance(found, Taken):
                    return found
                if clock.monotonic() - began < wait / 2:  # it does not let us wait
                    pause = min(times.look_every, max(FIRST_PAUSE, 2 * pause))
                    await clock.sleep(min(found.seconds + 0.01, pause) * self._shared.entropy.uniform(0.8, 1.2))

    async def take_over(
        self, resource: Resource, *, owner: str, owner_id: str, wanted: Callable[[], bool]
    ) -> ServerLeaseHold:
        """Never by force: whoever renews its lease is alive."""
        found = await self._try(resource, owner, owner_id, 0.0) if wanted() else None
        if not isinstance(found, ServerLeaseHold):
            raise LockWithdrawn(resource.lock(self._shared.protocol), "its lease is renewed, or has not expired yet")
        return found

    async def _try(self, resource: Resource, owner: str, owner_id: str, wait: float) -> ServerLeaseHold | Taken:
        shared, name = self._shared, resource.lock(self._shared.protocol)
        self._require_admitted(name, owner)
        looking = shared.rivals.look_beside(resource, name, owner)
        gone = await in_time(shared.tools.clock, looking, f"the lease of {name!r} could not be read")
        drawn = shared.entropy.token_bytes(8).hex()
        client = LeaseClient(shared.http, shared.tools.clock, self._url, resource.token_resource, self._headers)
        hold = ServerLeaseHold(shared, client, name, owner, f"{owner_id}/{drawn}", drawn)
        try:
            taken = await hold.claim(wait, gone)
            if taken is not None:
                return taken
            self._require_admitted(name, owner)
            if not hold.held:
                raise LockWithdrawn(name, f"it came too late for owner {owner!r}")
            return hold
        except BaseException as error:
            hold.release()  # it is not known whether it became ours
            if isinstance(error, LeadershipLost) and not isinstance(error, SplitAuthority):
                self._require_admitted(name, owner)
            raise

    def _require_admitted(self, name: str, owner: str) -> None:
        if not self._shared.tools.locks.admitted(owner):
            raise LockWithdrawn(name, f"owner {owner!r} is not admitted")


def _grant(token: FencingToken) -> Grant:
    return Grant(token.domain, token.resource, token.epoch, token.owner_id, NAME)
