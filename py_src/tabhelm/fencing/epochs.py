"""Durable epochs: one number a grant, issued inside the authority, used only after its transaction completed.

The record of a resource names its epoch, its owner, the authority that decided and how often it was taken over by
force. A *domain* is a random id beside the epochs: epochs of two profiles, devices or wiped-and-forgotten databases
never meet in one high water. Living engines remember domain and epochs (``EpochMemory``), so that storage wiped under
them is repaired: the domain is written back, and the next epoch is above every remembered one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tabhelm.errors import LeadershipLost
from tabhelm.fencing.schema import FENCING
from tabhelm.fencing.token import MAX_NUMBER, HighWater
from tabhelm.ports import Clock, Database, Entropy, Transaction

DOMAIN_KEY = "domain"
_DOMAIN_BYTES = 16


@dataclass(frozen=True, slots=True)
class Grant:
    """One durable grant of leadership: what every fencing token of this tenure is made from."""

    domain: str
    resource: str
    epoch: int
    owner_id: str
    authority: str


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """What the store says of a resource."""

    domain: str
    epoch: int
    owner_id: str
    takeovers: int
    authority: str


class EpochMemory:
    """What a living engine remembers of one domain: the highest epoch that it issued or heard of, for each resource."""

    def __init__(self) -> None:
        self.domain: str | None = None
        self._epochs: dict[str, int] = {}

    def remember(self, domain: str, resource: str, epoch: int) -> None:
        """Note an epoch that was issued in the store's domain. Another domain replaces what was remembered."""
        if domain != self.domain:
            self.domain = domain
            self._epochs.clear()
        self._epochs[resource] = max(epoch, self._epochs.get(resource, 0))

    def heard(self, domain: str, resource: str, epoch: int) -> None:
        """Note what another engine says. Hearsay about another domain is not believed: the store decides."""
        if self.domain is None or domain == self.domain:
            self.remember(domain, resource, epoch)

    def remembers(self, resource: str) -> bool:
        """Whether an epoch of this resource was issued here or heard of."""
        return resource in self._epochs

    def highest(self, domain: str, resource: str) -> int:
        """The highest remembered epoch; 0 if none, or of another domain."""
        return self._epochs.get(resource, 0) if domain == self.domain else 0


def epoch_key(resource: str) -> str:
    """The key of a resource's epoch record."""
    return f"epoch:{resource}"


async def read_record(tx: Transaction, resource: str) -> EpochRecord | None:
    """The epoch record as this transaction sees it; ``None`` if there is none (never issued, or wiped)."""
    asked = tx.get(FENCING, DOMAIN_KEY), tx.get(FENCING, epoch_key(resource))
    record, domain = await asked[1], await asked[0]  # the last one first: then both are there
    if domain is None or record is None:
        return None
    return EpochRecord(domain["domain"], record["epoch"], record["owner"], record["takeovers"], record["authority"])


async def require_current(tx: Transaction, grant: Grant) -> None:
    """Let the transaction go on only if ``grant`` is the newest: for claims, settlements and an app's own writes.

    Raises:
        LeadershipLost: a newer grant is in the store, or the store was wiped (``storage-wiped``).
    """
    record = await read_record(tx, grant.resource)
    if record is None or record.domain != grant.domain:
        raise LeadershipLost(grant.resource, "storage-wiped")
    if (record.epoch, record.owner_id) != (grant.epoch, grant.owner_id):
        raise LeadershipLost(grant.resource, "newer-epoch")


class EpochIssuer:
    """Issues epochs in the app's database. One for each context; all of them meet in the store's transactions."""

    def __init__(self, database: Database, clock: Clock, entropy: Entropy, memory: EpochMemory) -> None:
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self.memory = memory
        self._takeovers: dict[str, int] = {}
        """As of our own last grants."""

    async def takeovers(self, resource: str) -> int:
        """How often the resource was taken over by force. Read it *before* asking for the lock, give it to
        ``issue``."""

        async def body(tx: Transaction) -> EpochRecord | None:
            return await read_record(tx, resource)

        record = await self._database.transaction([FENCING], "readonly", body)
        if record is None:
            return 0
        # Whoever stands by remembers from now on, though it never issued an epoch, nor heard of the leader yet.
        self.memory.remember(record.domain, resource, record.epoch)
        return record.takeovers

    async def takeovers_before(self, resource: str) -> int:
        """The count of our own last grant, else as read now: for whoever is about to wait for the lock.

        An older count is as good, since it is from before the lock is asked for. If somebody took over since, ``issue``
        refuses once, and the next count is read.
        """
        known = self._takeovers.get(resource)
        return await self.takeovers(resource) if known is None else known

    async def issue(
        self,
        resource: str,
        owner_id: str,
        authority: str,
        *,
        takeovers_seen: int | None,
        takeover: bool = False,
        holds: Callable[[], bool],
        first: Callable[[Transaction], Coroutine[Any, Any, None]] | None = None,
    ) -> Grant:
        """Issue the next epoch. Call only while holding the authority; ``holds`` is asked again inside the transaction.

        ``takeovers_seen`` is the count read before the lock was requested: if somebody took over since, this holder may
        have been robbed without knowing it yet, and must start again. ``None``: this authority cannot be robbed.
        ``first`` is run first in the same transaction, and refuses by raising.

        Raises:
            LeadershipLost: taken over since (``taken-over``), no longer held (``lock-lost``), or no epoch is left
                (``epochs-exhausted``).
            DatabaseError: nothing was issued, or it is unknown whether it was: the epoch must not be used.
        """

        counted = 0

        async def body(tx: Transaction) -> Grant:
            nonlocal counted
            if first is not None:
                await first(tx)
            domain = await self._stored_domain(tx)
            record = await tx.get(FENCING, epoch_key(resource))
            takeovers: int = record["takeovers"] if record else 0
            if takeovers_seen is not None and takeovers != takeovers_seen:
                raise LeadershipLost(resource, "taken-over")
            _require(holds, resource)
            stored: int = record["epoch"] if record else 0
            epoch = max(stored, self.memory.highest(domain, resource)) + 1
            counted = takeovers + int(takeover)
            return await self._write(tx, Grant(domain, resource, epoch, owner_id, authority), counted)

        self._takeovers.pop(resource, None)
        grant = await self._complete(body)
        self._takeovers[resource] = counted
        return grant

    async def reissue_above(self, grant: Grant, high_water: HighWater, *, holds: Callable[[], bool]) -> Grant:
        """Go on above a receiver's high water that our store has forgotten. Call only while holding the authority.

        Allowed only if, inside the transaction, the *stored* epoch is still below the high water: otherwise somebody
        else leads, and two holders could outbid each other for ever.

        Raises:
            LeadershipLost: somebody else leads (``newer-epoch``), the domain changed (``storage-wiped``), or no epoch
                is left above the high water (``epochs-exhausted``).
        """

        async def body(tx: Transaction) -> Grant:
            domain = await tx.get(FENCING, DOMAIN_KEY)
            if domain is not None and domain["domain"] != grant.domain:
                # Whoever found the store wiped began a domain; other resources may have epochs in it by now.
                raise LeadershipLost(grant.resource, "storage-wiped")
            record = await read_record(tx, grant.resource)
            if record is not None and (
                record.epoch >= high_water.epoch or (record.epoch, record.owner_id) != (grant.epoch, grant.owner_id)
            ):
                raise LeadershipLost(grant.resource, "newer-epoch")
            _require(holds, grant.resource)
            if domain is None:
                await tx.put(FENCING, {"key": DOMAIN_KEY, "domain": grant.domain, "created_at": self._clock.wall()})
            renewed = Grant(grant.domain, grant.resource, high_water.epoch + 1, grant.owner_id, grant.authority)
            return await self._write(tx, renewed, record.takeovers if record else 0)

        return await self._complete(body)

    async def restore(self, tx: Transaction, grant: Grant) -> None:
        """Write a grant back that the store has forgotten. For whoever holds the authority without any doubt.

        Raises:
            LeadershipLost: the store was wiped and begun anew by others (``storage-wiped``), or somebody else leads
                (``newer-epoch``).
        """
        domain = await tx.get(FENCING, DOMAIN_KEY)
        if domain is None:
            await tx.put(FENCING, {"key": DOMAIN_KEY, "domain": grant.domain, "created_at": self._clock.wall()})
        elif domain["domain"] != grant.domain:
            raise LeadershipLost(grant.resource, "storage-wiped")
        record = await read_record(tx, grant.resource)
        if record is None:
            await self._write(tx, grant, 0)
        elif (record.epoch, record.owner_id) != (grant.epoch, grant.owner_id):
            raise LeadershipLost(grant.resource, "newer-epoch")

    async def require_current(self, grant: Grant) -> None:
        """Check in the store that ``grant`` is the newest.

        Raises:
            LeadershipLost: it is not.
        """

        async def body(tx: Transaction) -> None:
            await require_current(tx, grant)

        await self._database.transaction([FENCING], "readonly", body)

    async def _stored_domain(self, tx: Transaction) -> str:
        stored = await tx.get(FENCING, DOMAIN_KEY)
        if stored is not None:
            return str(stored["domain"])
        domain = self.memory.domain or self._entropy.token_bytes(_DOMAIN_BYTES).hex()
        await tx.put(FENCING, {"key": DOMAIN_KEY, "domain": domain, "created_at": self._clock.wall()})
        return domain

    async def _write(self, tx: Transaction, grant: Grant, takeovers: int) -> Grant:
        if grant.epoch >= MAX_NUMBER:
            # Only a mark that no real history reaches leads here: stored, it would end this resource for good.
            raise LeadershipLost(grant.resource, "epochs-exhausted")
        await tx.put(
            FENCING,
            {
                "key": epoch_key(grant.resource),
                "resource": grant.resource,
                "epoch": grant.epoch,
                "owner": grant.owner_id,
                "authority": grant.authority,
                "takeovers": takeovers,
                "issued_at": self._clock.wall(),
            },
        )
        return grant

    async def _complete(self, body: Callable[[Transaction], Coroutine[Any, Any, Grant]]) -> Grant:
        # The memory learns only what is durable: an epoch of an aborted transaction was never issued.
        grant = await self._database.transaction([FENCING], "readwrite", body)
        self.memory.remember(grant.domain, grant.resource, grant.epoch)
        return grant


def _require(holds: Callable[[], bool], resource: str) -> None:
    if not holds():
        raise LeadershipLost(resource, "lock-lost")
