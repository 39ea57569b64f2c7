"""Web Locks decide who holds; IndexedDB numbers the grants.

Exclusive while nobody steals, not durable (the browser frees a dead context's locks within milliseconds), fenced by the
epoch that is issued while the lock is held.
"""

from __future__ import annotations

from collections.abc import Callable

from tabhelm.authority.base import Guarantees
from tabhelm.authority.rivals import WEB_LOCKS, Rivals
from tabhelm.errors import LeadershipLost, LockWithdrawn
from tabhelm.fencing.epochs import EpochIssuer, Grant
from tabhelm.fencing.token import HighWater
from tabhelm.names import Resource
from tabhelm.ports import HeldLock, Locks, Transaction

NAME = WEB_LOCKS


class WebLocksHold:
    """A held lock, and the epoch issued under it. ``forced``: it was stolen from its holder."""

    def __init__(
        self,
        resource: Resource,
        lock: HeldLock,
        issuer: EpochIssuer,
        owner_id: str,
        takeovers: int,
        *,
        forced: bool = False,
        rivals: Rivals | None = None,
    ) -> None:
        self._resource = resource.token_resource
        self._lock = lock
        self._issuer = issuer
        self._owner_id = owner_id
        self._takeovers = takeovers
        self._forced = forced
        self._rivals = rivals
        self._grant: Grant | None = None

    @property
    def held(self) -> bool:
        return self._lock.held

    @property
    def lost(self) -> str | None:
        if self._lock.held:
            return None
        return "lock-stolen" if self._lock.ended == "stolen" else "lock-lost"

    def on_end(self, callback: Callable[[str], None]) -> None:
        self._lock.on_end(callback)

    def release(self) -> None:
        self._lock.release()

    async def begin(self) -> Grant:
        self._require_held()
        self._grant = await self._issuer.issue(
            self._resource,
            self._owner_id,
            NAME,
            takeovers_seen=self._takeovers,
            takeover=self._forced,
            holds=lambda: self._lock.held,
            first=self._refuse_lease,
        )
        # The lock may have gone while the transaction completed: the next holder's epoch is above ours, ours is void.
        self._require_held()
        return self._grant

    async def check(self) -> None:
        self._require_held()
        if self._grant is None:
            raise LeadershipLost(self._resource, "not-begun")
        await self._issuer.require_current(self._grant)
        self._require_held()

    async def reissue_above(self, high_water: HighWater) -> Grant:
        self._require_held()
        if self._grant is None:
            raise LeadershipLost(self._resource, "not-begun")
        self._grant = await self._issuer.reissue_above(self._grant, high_water, holds=lambda: self._lock.held)
        self._require_held()
        return self._grant

    async def _refuse_lease(self, tx: Transaction) -> None:
        if self._rivals is not None:
            await self._rivals.refuse_lease(tx, self._resource, self._lock.name)

    def _require_held(self) -> None:
        if (reason := self.lost) is not None:
            raise LeadershipLost(self._resource, reason)


class WebLocksAuthority:
    """The default authority: ``navigator.locks``."""

    name = NAME
    guarantees = Guarantees(exclusive=True, durable=False, fenced=True, timeout_based=False, reach="tabs")

    def __init__(self, locks: Locks, issuer: EpochIssuer, protocol: int, rivals: Rivals | None = None) -> None:
        self._locks = locks
        self._issuer = issuer
        self._protocol = protocol
        self._rivals = rivals

    async def acquire(self, resource: Resource, *, owner: str, owner_id: str) -> WebLocksHold:
        # The count of takeovers is from before the lock is asked for: whoever takes over while we hold the lock but
        # have no epoch yet raises it, and our issuing transaction then aborts.
        takeovers = await self._issuer.takeovers_before(resource.token_resource)
        lock = await self._locks.acquire(resource.lock(self._protocol), owner=owner)
        assert lock is not None, "only ifAvailable requests can come back without a lock"
        return WebLocksHold(resource, lock, self._issuer, owner_id, takeovers, rivals=self._rivals)

    async def take_over(
        self, resource: Resource, *, owner: str, owner_id: str, wanted: Callable[[], bool]
    ) -> WebLocksHold:
        takeovers = await self._issuer.takeovers(resource.token_resource)
        name = resource.lock(self._protocol)
        if not wanted():
            raise LockWithdrawn(name, "its holder gave a sign of life")
        lock = await self._locks.acquire(name, owner=owner, steal=True)
        assert lock is not None, "only ifAvailable requests can come back without a lock"
        return WebLocksHold(resource, lock, self._issuer, owner_id, takeovers, forced=True, rivals=self._rivals)
