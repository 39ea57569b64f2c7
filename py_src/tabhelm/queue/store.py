"""The queue in the database: every change is one strict transaction. Those of a leader are in ``led``.

First-in first-out within a partition, independent between partitions: an operation that must wait holds back its own
partition only. What each call costs depends on what it moves, never on what else is queued, waits or is dead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tabhelm.errors import IdentifierReused, KeyExists, QueueFull
from tabhelm.fencing.schema import CLAIMS, DEAD_LETTERS, IDENTIFIER, OPERATIONS, ORDER, PARTITIONS, RECEIPTS
from tabhelm.ports import Clock, Database, Entropy, KeyRange, Transaction
from tabhelm.ports.database import Record
from tabhelm.queue.led import LedStore
from tabhelm.queue.letters import remove, retry
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.partitions import ready
from tabhelm.queue.records import NewOperation, Operation, QueueStats
from tabhelm.queue.settling import RETENTION
from tabhelm.queue.totals import COUNTED, Book, Totals

_NO_LIMITS = QueueOptions()


class QueueStore(LedStore):
    """One queue: what any tab may do with it, and what its leader does."""

    def __init__(self, database: Database, clock: Clock, entropy: Entropy, resource: str) -> None:
        super().__init__(database, clock, entropy, resource)
        self._searched = 0
        """The ordinal of the oldest operation, the last time."""
        self._as_of = ("", 0)
        """``born`` and ``returned`` of the totals at that time."""

    async def enqueue(self, operations: Sequence[NewOperation], limits: QueueOptions = _NO_LIMITS) -> int:
        """Store all or none; returns how many were new. Durable when it returns.

        Raises:
            IdentifierReused: an id is known with another payload or partition.
            QueueFull: one of the ``limits`` does not allow it.
            QuotaExceeded, DatabaseError: nothing was stored, or it is unknown: the same ids may be enqueued again.
        """
        if all(item.fresh for item in operations):
            try:
                return await self._add(operations, limits, look=False)
            except KeyExists:
                pass  # drawn for this call and yet known: the call is being repeated; look closer
        return await self._add(operations, limits, look=True)

    async def _add(self, operations: Sequence[NewOperation], limits: QueueOptions, *, look: bool) -> int:
        async def body(tx: Transaction, book: Book) -> int:
            nonlocal look
            new = await self._unknown(tx, operations) if look else operations
            # Cut off and begun again, perhaps much later: they may have been sent by way of another engine meanwhile.
            look = True
            return await self._append(tx, book, new, limits) if new else 0

        return await self._counted([*COUNTED, PARTITIONS, RECEIPTS], "readwrite", body)

    async def _unknown(self, tx: Transaction, operations: Sequence[NewOperation]) -> list[NewOperation]:
        """Those of the operations that are not stored, nor were."""
        new: dict[str, NewOperation] = {}
        for operation in operations:
            digest = await self._known(tx, operation.op_id)
            if operation.op_id in new:
                digest = new[operation.op_id].digest
            if digest is None:
                new[operation.op_id] = operation
            elif digest != operation.digest:
                raise IdentifierReused(
                    f"operation id {operation.op_id!r} is already used in queue {self.resource!r} for another "
                    "payload or partition: draw a new id for a new operation"
                )
        return list(new.values())

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
        self, tx: Transaction, book: Book, operations: Sequence[NewOperation], limits: QueueOptions
    ) -> int:
        size, now = sum(operation.size for operation in operations), self._clock.wall()
        totals = await book.totals()
        self._require_room(totals, len(operations), size, limits)
        records = [item.to_record(self.resource, totals.next + at, now) for at, item in enumerate(operations)]
        totals.next += len(records)
        totals.live += len(records)
        totals.bytes += size
        tx.add_all(OPERATIONS, records)
        tx.put_all(PARTITIONS, [ready(self.resource, name) for name in {item.partition: None for item in operations}])
        await book.write()
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

    # -- for people ---------------------------------------------------------------------------------------------------

    async def stats(self) -> QueueStats:
        """How many operations are in which state."""

        async def body(tx: Transaction, book: Book) -> QueueStats:
            claims = tx.get_all(CLAIMS, KeyRange.prefix(self.resource))
            came = await self._oldest(tx, book)  # asked for last, awaited first
            totals = await book.totals()
            in_flight = min(totals.live, sum(len(claim["ordinals"]) for claim in await claims))
            age = None if came is None else max(0.0, self._clock.wall() - came)
            return QueueStats(
                totals.live - in_flight, in_flight, totals.done, totals.dead, age, totals.bytes, totals.blocked
            )

        return await self._counted(COUNTED, "readonly", body)

    async def _oldest(self, tx: Transaction, book: Book) -> float | None:
        """When the oldest operation came. Searched for from where the last one stood: browsers walk through the index
        entries of all that was deleted before it, one by one."""
        found = await self._oldest_from(tx, self._searched)
        totals = await book.totals()
        as_of = totals.born, totals.returned
        if as_of != self._as_of and self._searched:  # other operations, or some that came back
            found = await self._oldest_from(tx, 0)
        self._as_of = as_of
        if not found:
            return None
        self._searched = found[0]["ordinal"]
        return float(found[0]["enqueued_at"])

    def _oldest_from(self, tx: Transaction, ordinal: int) -> Awaitable[list[Record]]:
        keys = KeyRange([self.resource, ordinal], [self.resource, []])
        return tx.get_all(OPERATIONS, keys, index=ORDER, count=1)

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
        async def body(tx: Transaction, book: Book) -> int:
            asked = [tx.get(DEAD_LETTERS, [self.resource, op_id], index=IDENTIFIER) for op_id in dict.fromkeys(op_ids)]
            found = [Operation.from_record(record) for each in asked if (record := await each) is not None]
            if found:
                act(tx, await book.totals(), found)
                await book.write()
            return len(found)

        return await self._counted([*COUNTED, PARTITIONS], "readwrite", body)


__all__ = ["RETENTION", "QueueStore"]
