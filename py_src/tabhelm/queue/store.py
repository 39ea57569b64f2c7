"""The queue in the database: every change is one strict transaction, and those of a leader check the epoch inside it.

First-in first-out within a partition, independent between partitions: an operation that must wait holds back its own
partition only. What each call costs depends on what it moves, never on what else is queued, waits or is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from tabhelm.errors import IdentifierReused, KeyExists, QueueFull
from tabhelm.fencing.epochs import Grant, require_current
from tabhelm.fencing.schema import (
    CLAIMS,
    COUNTERS,
    DEAD_LETTERS,
    FENCING,
    IDENTIFIER,
    OPERATIONS,
    ORDER,
    PARTITIONS,
    RECEIPTS,
)
from tabhelm.ports import Clock, Database, Entropy, KeyRange, Transaction
from tabhelm.queue.claiming import CLAIM_SIZE, Claim, Claiming, Found, recover
from tabhelm.queue.letters import remove, retry
from tabhelm.queue.options import QueueOptions, Rejected
from tabhelm.queue.partitions import ready
from tabhelm.queue.records import NewOperation, Operation, Outcome, QueueStats
from tabhelm.queue.settling import RETENTION, Settling
from tabhelm.queue.totals import COUNTED, Totals, read_totals, recount, write_totals

T = TypeVar("T")
_LED = (FENCING, OPERATIONS, PARTITIONS, CLAIMS, DEAD_LETTERS, COUNTERS)
"""The stores of a leader's transactions."""
_NO_LIMITS = QueueOptions()
_PAGE = 100


class QueueStore:
    """One queue (``resource`` is its token resource) in the app's database."""

    def __init__(self, database: Database, clock: Clock, entropy: Entropy, resource: str) -> None:
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self._claims = 0
        self.resource = resource
        self.totals: Totals | None = None
        """As of the last transaction here; ``None`` before the first."""
        self.on_lost: Callable[[int], None] = lambda operations: None
        """Called with the number of acknowledged operations that are gone with the storage that held them."""

    async def enqueue(self, operations: Sequence[NewOperation], limits: QueueOptions = _NO_LIMITS) -> int:
        """Store all or none; returns how many were new. Durable when it returns.

        Raises:
            IdentifierReused: an id is known with another payload or partition.
            QueueFull: one of the ``limits`` does not allow it.
            QuotaExceeded, DatabaseError: nothing was stored, or it is unknown: the same ids may be enqueued again.
        """
        if all(item.fresh for item in operations):
            try:
                return await self._add(operations, limits)
            except KeyExists:
                pass  # drawn for this call and yet known: the call is being repeated; look closer
        return await self._add_unknown(operations, limits)

    async def _add(self, operations: Sequence[NewOperation], limits: QueueOptions) -> int:
        async def body(tx: Transaction, totals: Totals) -> int:
            return await self._append(tx, totals, operations, limits)

        return await self._counted([*COUNTED, PARTITIONS], "readwrite", body)

    async def _add_unknown(self, operations: Sequence[NewOperation], limits: QueueOptions) -> int:
        async def body(tx: Transaction, totals: Totals) -> int:
            new: dict[str, NewOperation] = {}
            for operation in operations:
                digest = await self._known(tx, operation.op_id)
                if operation.op_id in new:
                    digest = new[operation.op_id].digest()
                if digest is None:
                    new[operation.op_id] = operation
                elif digest != operation.digest():
                    raise IdentifierReused(
                        f"operation id {operation.op_id!r} is already used in queue {self.resource!r} for another "
                        "payload or partition: draw a new id for a new operation"
                    )
            return await self._append(tx, totals, list(new.values()), limits) if new else 0

        return await self._counted([*COUNTED, PARTITIONS, RECEIPTS], "readwrite", body)

    async def _known(self, tx: Transaction, op_id: str) -> str | None:
        """The digest of a known operation."""
        key: list[Any] = [self.resource, op_id]
        asked = [tx.get(store, key, index=IDENTIFIER) for store in (OPERATIONS, DEAD_LETTERS, RECEIPTS)]
        for found in asked[:2]:
            if (record := await found) is not None:
                return str(record["digest"])
        receipt = await asked[2]
        return None if receipt is None else str(receipt["digests"][receipt["identifiers"].index(key)])

    async def _append(
        self, tx: Transaction, totals: Totals, operations: Sequence[NewOperation], limits: QueueOptions
    ) -> int:
        size, now = sum(operation.size for operation in operations), self._clock.wall()
        self._require_room(totals, len(operations), size, limits)
        records = [item.to_record(self.resource, totals.next + at, now) for at, item in enumerate(operations)]
        totals.next += len(records)
        totals.live += len(records)
        totals.bytes += size
        tx.add_all(OPERATIONS, records)
        tx.put_all(PARTITIONS, [ready(self.resource, name) for name in {item.partition: None for item in operations}])
        await write_totals(tx, self.resource, totals, self._draw)
        return len(records)

    def _require_room(self, totals: Totals, count: int, size: int, limits: QueueOptions) -> None:
        for limit, most, held, more in (
            ("max_operations", limits.max_operations, totals.undone, count),
            ("max_bytes", limits.max_bytes, totals.bytes, size),
        ):
            if most is not None and held + more > most:
                raise QueueFull(
                    f"queue {self.resource!r} holds {held} of the {most} that {limit} allows, and {more} more were to "
                    "be stored: wait until some are sent, or remove dead letters",
                    limit=limit,
                )

    # -- for the leader -----------------------------------------------------------------------------------------------

    async def recover(self, grant: Grant) -> tuple[int, float]:
        """Return everything in flight to the queue, its outcome unknown: how many there were, and how long the receiver
        remembers operation ids (seconds).

        To be called before ``grant``'s holder claims: whatever is in flight then was left by somebody who is no more.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction, totals: Totals) -> tuple[int, float]:
            count = await recover(tx, self.resource, grant, self._clock.wall())
            if await recount(tx, self.resource, totals):
                await write_totals(tx, self.resource, totals, self._draw)
            return count, RETENTION if totals.retention is None else totals.retention

        return await self._counted(_LED, "readwrite", body)

    async def note_retention(self, seconds: float) -> None:
        """Remember that the receiver forgets operation ids after so many seconds. The least that it ever said counts:
        what it had forgotten once, it does not know again."""

        async def body(tx: Transaction, totals: Totals) -> None:
            if seconds < (RETENTION if totals.retention is None else totals.retention):
                totals.retention = seconds
                await write_totals(tx, self.resource, totals, self._draw)

        await self._counted(COUNTED, "readwrite", body)

    async def claim(
        self,
        grant: Grant,
        limit: int,
        *,
        after: str = "",
        alone: Mapping[str, str] | None = None,
        retention: float = RETENTION,
        rejected: Rejected = "dead",
    ) -> Found:
        """Claim up to ``limit`` operations that may be sent now, or ``CLAIM_SIZE`` bytes, but at least one.

        None of a partition that is in flight. Partitions get their turn in the order of their names, those behind
        ``after`` first. ``alone`` names operations (with their partitions) that are claimed before all others, each by
        itself. An operation of unknown outcome that is older than ``retention`` is found dead, and never sent again.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """
        self._claims += 1
        number = f"{grant.epoch}.{self._claims}"

        async def body(tx: Transaction, totals: Totals) -> Found:
            claiming = Claiming(tx, totals, self.resource, grant, self._clock.wall(), limit, retention, rejected)
            found = await claiming.run(number, after, alone or {})
            if found.dead:
                await write_totals(tx, self.resource, totals, self._draw)
            return found

        return await self._counted(_LED, "readwrite", body)

    async def settle(
        self,
        grant: Grant,
        claim: Claim,
        outcomes: Mapping[str, Outcome],
        delays: Mapping[str, float] | None = None,
        *,
        left: Sequence[Operation] = (),
        rejected: Rejected = "dead",
        deleted: bool = False,
    ) -> list[Operation]:
        """Write down what became of claimed operations; returns those that died.

        An operation without outcome goes back as it was, unless it is among the ones ``left`` in the claim. ``delays``
        holds seconds to wait, by operation id. Somebody who took the claim over meanwhile decides instead: then nothing
        is written. ``deleted`` says that ``delete_done`` was here before.

        Raises:
            LeadershipLost: ``grant`` is not the newest; its successor decides about these operations.
        """

        async def body(tx: Transaction, totals: Totals) -> list[Operation]:
            settling = Settling(tx, totals, self.resource, self._clock.wall(), rejected)
            died = await settling.run(grant, claim, outcomes, delays or {}, left, deleted=deleted)
            if settling.counted:
                await write_totals(tx, self.resource, totals, self._draw)
            return died

        return await self._counted([*_LED, RECEIPTS], "readwrite", body)

    # -- while the storage is full ------------------------------------------------------------------------------------

    async def peek(
        self, grant: Grant, limit: int, *, skip: Collection[str], over: Collection[str], retention: float = RETENTION
    ) -> list[Operation]:
        """Up to ``limit`` operations that may be sent now, oldest first, without claiming them: writes nothing.

        None of the partitions ``skip``, nor of one that is in flight under another claim than those that are ``over``.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction) -> list[Operation]:
            claims = tx.get_all(CLAIMS, KeyRange.prefix(self.resource))
            await require_current(tx, grant)
            held = {name for claim in await claims if claim["claim"] not in over for name in claim["partitions"]}
            barred = {*skip, *held}
            found: list[Operation] = []
            now, room, after = self._clock.wall(), CLAIM_SIZE, 0
            while len(found) < limit:
                keys = KeyRange([self.resource, after], [self.resource, []], lower_open=True)
                page = [
                    Operation.from_record(each) for each in await tx.get_all(OPERATIONS, keys, index=ORDER, count=_PAGE)
                ]
                for item in page:
                    waits = item.not_before > now >= item.delayed_at
                    stale = item.unknown_since and item.unknown_since < now - retention
                    if item.partition in barred or item.blocks or waits or stale or (found and item.size > room):
                        barred.add(item.partition)
                    elif len(found) < limit:
                        found.append(item)
                        room -= item.size
                if len(page) < _PAGE:
                    break
                after = page[-1].ordinal
            return found

        return await self._database.transaction([FENCING, OPERATIONS, CLAIMS], "readonly", body)

    async def delete_done(self, grant: Grant, done: Sequence[Operation]) -> None:
        """Delete operations that are done, and write nothing down: ``settle`` or ``note_done`` will.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction) -> None:
            await require_current(tx, grant)
            await tx.delete_all(OPERATIONS, [item.place for item in done])

        await self._database.transaction([FENCING, OPERATIONS], "readwrite", body)

    async def note_done(self, grant: Grant, done: Sequence[Operation]) -> None:
        """Write down what ``delete_done`` did of operations that were never claimed.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction, totals: Totals) -> None:
            await Settling(tx, totals, self.resource, self._clock.wall(), "dead").note(grant, done)
            await write_totals(tx, self.resource, totals, self._draw)

        await self._counted([*_LED, RECEIPTS], "readwrite", body)

    # -- for people ---------------------------------------------------------------------------------------------------

    async def stats(self) -> QueueStats:
        """How many operations are in which state."""

        async def body(tx: Transaction, totals: Totals) -> QueueStats:
            first = tx.get_all(OPERATIONS, KeyRange.prefix(self.resource), index=ORDER, count=1)
            claims = await tx.get_all(CLAIMS, KeyRange.prefix(self.resource))
            in_flight = min(totals.live, sum(len(claim["ordinals"]) for claim in claims))
            oldest = await first
            age = max(0.0, self._clock.wall() - oldest[0]["enqueued_at"]) if oldest else None
            return QueueStats(
                totals.live - in_flight, in_flight, totals.done, totals.dead, age, totals.bytes, totals.blocked
            )

        return await self._counted(COUNTED, "readonly", body)

    async def dead_letters(self) -> list[Operation]:
        """The operations that need a person, oldest first, each with its reason."""

        async def body(tx: Transaction) -> list[Operation]:
            records = await tx.get_all(DEAD_LETTERS, KeyRange.prefix(self.resource))
            return [Operation.from_record(record) for record in records]

        return await self._database.transaction([DEAD_LETTERS], "readonly", body)

    async def retry_dead(self, op_ids: Sequence[str]) -> int:
        """Queue dead operations again (at their old place in their partition); how many there were."""
        return await self._with_letters(op_ids, retry)

    async def remove_dead(self, op_ids: Sequence[str]) -> int:
        """Delete dead operations for good; how many there were."""
        return await self._with_letters(op_ids, remove)

    async def _with_letters(
        self, op_ids: Sequence[str], act: Callable[[Transaction, Totals, Sequence[Operation]], None]
    ) -> int:
        async def body(tx: Transaction, totals: Totals) -> int:
            asked = [tx.get(DEAD_LETTERS, [self.resource, op_id], index=IDENTIFIER) for op_id in dict.fromkeys(op_ids)]
            found = [Operation.from_record(record) for each in asked if (record := await each) is not None]
            if found:
                act(tx, totals, found)
                await write_totals(tx, self.resource, totals, self._draw)
            return len(found)

        return await self._counted([*COUNTED, PARTITIONS], "readwrite", body)

    # -- counting -----------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """See whether what was stored is still there; ``on_lost`` is told."""

        async def body(tx: Transaction, totals: Totals) -> None:
            return None

        await self._counted(COUNTED, "readonly", body)

    async def _counted(
        self, stores: Sequence[str], mode: Any, body: Callable[[Transaction, Totals], Coroutine[Any, Any, T]]
    ) -> T:
        """A transaction that knows the totals; what it makes of them is remembered when it is complete."""

        async def counting(tx: Transaction) -> tuple[str, Totals, T]:
            totals = await read_totals(tx, self.resource)
            born = totals.born
            return born, totals, await body(tx, totals)

        born, totals, result = await self._database.transaction(stores, mode, counting)
        before, self.totals = self.totals, totals
        if before is not None and before.born and before.born != born and before.undone:
            self.on_lost(before.undone)
        return result

    def _draw(self) -> str:
        return self._entropy.token_bytes(8).hex()


__all__ = ["COUNTERS", "RETENTION", "QueueStore"]
