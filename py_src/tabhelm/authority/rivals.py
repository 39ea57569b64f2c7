"""Is the resource free? One store numbers the grants of all authorities, so two of them that are alive meet there.

The epoch record names the authority that decided last. Who is of another one must know that its holder is gone, and is
refused otherwise: ``SplitAuthority``. A lease shows that it lives by being renewed. A Web Lock shows nothing in the
store, but can be asked for; where it cannot, its grant is respected for the time of one lease.
"""

from __future__ import annotations

from dataclasses import dataclass

from tabhelm.authority.lease_tools import LeaseTimes
from tabhelm.errors import NoAuthority, SplitAuthority
from tabhelm.fencing.epochs import DOMAIN_KEY, EpochIssuer, EpochRecord, read_record
from tabhelm.fencing.leases import LEASE, LONGEST_GAP, Lease, Stillness, read_lease, write_lease
from tabhelm.fencing.schema import FENCING
from tabhelm.names import Resource
from tabhelm.ports import Clock, Database, Locks, Transaction

WEB_LOCKS = "web-locks"
SERVER_LEASE = "server-lease"
"""Decided far away; its holder in this browser renews a lease in the store as well, so that it is seen here."""
_FORGOTTEN = 600.0
"""Seconds after which it is forgotten what was seen of a resource that nobody looks at any more."""
_UNWATCHED = 90.0
"""Seconds without a look after which a leader may have come and gone unseen. A hidden page looks once a minute."""


@dataclass(frozen=True, slots=True)
class Seen:
    """``gone``: another authority decided last, and its holder is gone."""

    free: bool
    gone: EpochRecord | None = None


class Rivals:
    """What one context has seen of other holders. It remembers from one attempt to the next."""

    def __init__(
        self, database: Database, issuer: EpochIssuer, locks: Locks, clock: Clock, times: LeaseTimes | None = None
    ) -> None:
        self._database = database
        self._issuer = issuer
        self._locks = locks
        self._clock = clock
        self._times = times or LeaseTimes()
        self._stillness: dict[tuple[str, str], Stillness] = {}
        self._lengths: dict[str, float] = {}
        """How long the lease was that was seen last, in seconds."""

    def forget(self, lock_name: str) -> None:
        """It is ours now: what was seen of its former holders matters no more."""
        for what in ("lease", "epoch", "wiped"):
            self._drop((what, lock_name))

    async def refuse_lease(self, tx: Transaction, token_resource: str, lock_name: str) -> None:
        """For whoever was granted the Web Lock: end a lease that has expired, before the next epoch is issued.

        Raises:
            SplitAuthority: a lease is being renewed, or may be.
        """
        lease = await read_lease(tx, lock_name)
        if lease is None or lease.released:
            return
        if not self._expired(lock_name, lease):
            raise SplitAuthority(token_resource, SplitAuthority.code)
        over = Lease(lease.owner_id, lease.hold, lease.renewal + 1, lease.seconds, True)
        await write_lease(tx, lock_name, over, self._clock)

    async def look(self, resource: Resource, lock_name: str, owner: str, owner_id: str) -> Seen:
        """For whoever wants a lease: whether it is worth a claim. Reads only.

        Raises:
            SplitAuthority: that holder is alive, or may be.
            LockWithdrawn: ``owner`` may not ask now.
            DatabaseError: the store could not be read.
        """

        async def body(tx: Transaction) -> tuple[EpochRecord | None, int | None]:
            record = await read_record(tx, resource.token_resource)
            return record, await self._next_renewal(tx, record, resource.token_resource, lock_name, owner_id)

        record, number = await self._database.transaction([FENCING], "readonly", body)
        if record is not None and record.authority == SERVER_LEASE and number is None:
            raise SplitAuthority(resource.token_resource, SplitAuthority.code)
        if record is None or record.authority == LEASE or number is None:
            return Seen(number is not None)
        if record.authority != SERVER_LEASE:
            await self._require_gone(record, resource.token_resource, lock_name, owner)
        return Seen(True, record)

    async def look_beside(self, resource: Resource, lock_name: str, owner: str) -> EpochRecord | None:
        """For whoever lets a server decide: nothing in this browser may decide otherwise. The grant that was found.

        Raises:
            SplitAuthority: its holder is alive, or may be.
            LockWithdrawn: ``owner`` may not ask now.
            DatabaseError: the store could not be read.
        """

        async def body(tx: Transaction) -> tuple[EpochRecord | None, bool]:
            lease = await read_lease(tx, lock_name)
            gone = lease is None or lease.released or self._expired(lock_name, lease)
            return await read_record(tx, resource.token_resource), gone

        record, gone = await self._database.transaction([FENCING], "readonly", body)
        if record is None or record.authority == SERVER_LEASE:
            return record  # the server knows which of us has it
        if record.authority != LEASE:
            await self._require_gone(record, resource.token_resource, lock_name, owner)
        elif not gone:
            raise SplitAuthority(resource.token_resource, SplitAuthority.code)
        return record

    async def beside(self, tx: Transaction, token_resource: str, lock_name: str, gone: EpochRecord | None) -> int:
        """The number of the next renewal of the lease that shows a server's decision here.

        Raises:
            SplitAuthority: another authority decided since ``look_beside`` found ``gone``.
        """
        record = await read_record(tx, token_resource)
        if record is not None and record.authority != SERVER_LEASE and record != gone:
            raise SplitAuthority(token_resource, SplitAuthority.code)
        lease = await read_lease(tx, lock_name)
        return 1 if lease is None else lease.renewal + 1

    async def _require_gone(self, record: EpochRecord, token_resource: str, lock_name: str, owner: str) -> None:
        """The holder under locks, or under an authority that is not known here, is not there any more."""
        if record.authority == WEB_LOCKS:
            try:
                lock = await self._locks.acquire(lock_name, owner=owner, mode="shared", if_available=True)
            except NoAuthority:
                pass  # not here, but perhaps in another context of this origin
            else:
                if lock is None:
                    raise SplitAuthority(token_resource, SplitAuthority.code)
                lock.release()
                return
        if not self._still("epoch", lock_name, (record.domain, record.epoch, record.owner_id), self._times.lease):
            raise SplitAuthority(token_resource, SplitAuthority.code)

    async def free(
        self, tx: Transaction, token_resource: str, lock_name: str, owner_id: str, gone: EpochRecord | None
    ) -> int | None:
        """The number of the next renewal if the lease is free; ``None`` while somebody has it, or may have it.

        ``gone``: the grant that ``look`` found without a holder.

        Raises:
            SplitAuthority: another authority decided since.
        """
        record = await read_record(tx, token_resource)
        if record is not None and record.authority != LEASE and record != gone:
            raise SplitAuthority(token_resource, SplitAuthority.code)
        return await self._next_renewal(tx, record, token_resource, lock_name, owner_id)

    async def _next_renewal(
        self, tx: Transaction, record: EpochRecord | None, token_resource: str, lock_name: str, owner_id: str
    ) -> int | None:
        lease = await read_lease(tx, lock_name)
        if lease is not None or record is not None:
            self._drop(("wiped", lock_name))  # the next time that nothing is found, something is gone
        if lease is None:
            return 1 if record is not None or await self._never_led(tx, token_resource, lock_name) else None
        if lease.released or lease.owner_id == owner_id or self._expired(lock_name, lease):
            return lease.renewal + 1
        return None

    async def _never_led(self, tx: Transaction, token_resource: str, lock_name: str) -> bool:
        """There is no trace of any leader. Has there been none, or was the store wiped under one that lives?

        That one writes itself back within ``renew_deadline``, or gives up; a hidden one takes longer.
        """
        domain = await tx.get(FENCING, DOMAIN_KEY)
        if domain is not None and not self._issuer.memory.remembers(token_resource):
            return True
        watched = self._stillness.get(("wiped", lock_name))
        if watched is not None and watched.unseen > _UNWATCHED:
            self._drop(("wiped", lock_name))
        length = self._lengths.get(lock_name, 0.0)
        limit = length if length > self._times.lease else self._times.renew_deadline
        return self._still("wiped", lock_name, domain and domain["domain"], limit)

    def _expired(self, lock_name: str, lease: Lease) -> bool:
        self._lengths[lock_name] = lease.seconds
        limit = max(lease.seconds, self._times.lease)
        return self._still("lease", lock_name, (lease.hold, lease.renewal), limit)

    def _still(self, what: str, lock_name: str, seen: object, limit: float) -> bool:
        """Whether it is known to have been as it is for ``limit`` seconds."""
        for key in [key for key, known in self._stillness.items() if known.unseen > _FORGOTTEN]:
            self._drop(key)
        stillness = self._stillness.setdefault((what, lock_name), Stillness(self._clock))
        # A leap of our clock must not reach over what lies between the holder's deadline and the end of its lease.
        return stillness.look(seen, max(LONGEST_GAP, limit / 3)) >= limit

    def _drop(self, key: tuple[str, str]) -> None:
        self._stillness.pop(key, None)
        if key[0] == "lease":
            self._lengths.pop(key[1], None)
