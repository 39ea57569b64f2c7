"""The queue in the database: every change is one strict transaction, and those of a leader check the epoch inside it.

First-in first-out within a partition, independent between partitions: an operation that must wait holds back its own
partition only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabhelm.errors import IdentifierReused, KeyExists
from tabhelm.fencing.epochs import Grant, require_current
from tabhelm.fencing.schema import COUNTERS, FENCING, IDENTIFIER, LINE, OPERATIONS, RECEIPTS, SETTLED
from tabhelm.ports import Clock, Database, KeyRange, Transaction
from tabhelm.queue.records import NewOperation, Operation, OperationState, Outcome, QueueStats

RETENTION = 30 * 86_400.0
"""Seconds that receipts are kept, and after which an operation of unknown outcome is never sent again, unless the
receiver advertises that it remembers operation ids for a shorter time (``Tabhelm-Retention``)."""
_MARGIN = 0.1
"""This part of the retention is not used up: requests take time, and two clocks run at two speeds."""
_TRIM = 50
_FIRST_PAGE = 8
_LAST_PAGE = 256
"""Records read at a time: more and more while they are small, few where payloads are large."""
CLAIM_SIZE = 1_000_000
"""Characters of payload after which a claim is full: a request that takes long must not make its engine look dead."""


class QueueStore:
    """One queue (``resource`` is its token resource) in the app's database."""

    def __init__(self, database: Database, clock: Clock, resource: str) -> None:
        self._database = database
        self._clock = clock
        self.resource = resource

    async def enqueue(self, operations: Sequence[NewOperation]) -> int:
        """Store all or none; returns how many were new. Durable when it returns.

        Raises:
            IdentifierReused: an id is known with another payload or partition.
            QuotaExceeded, DatabaseError: nothing was stored, or it is unknown: the same ids may be enqueued again.
        """
        now = self._clock.wall()
        records = [
            Operation(self.resource, item.op_id, item.partition, item.payload, item.digest(), "queued", now)
            for item in operations
        ]
        if all(item.fresh for item in operations):
            try:
                return await self._add(records)
            except KeyExists:
                pass  # drawn for this call and yet known: the call is being repeated; look closer
        return await self._add_unknown(records)

    async def _add(self, operations: Sequence[Operation]) -> int:
        async def body(tx: Transaction) -> int:
            await tx.add_all(OPERATIONS, [operation.to_record() for operation in operations])
            return len(operations)

        return await self._database.transaction([OPERATIONS], "readwrite", body)

    async def _add_unknown(self, operations: Sequence[Operation]) -> int:
        async def body(tx: Transaction) -> int:
            new: dict[str, Operation] = {}
            for operation in operations:
                key: list[Any] = [self.resource, operation.op_id]
                known = await tx.get(OPERATIONS, key, index=IDENTIFIER) or await tx.get(RECEIPTS, key)
                digest = known["digest"] if known else None
                if operation.op_id in new:
                    digest = new[operation.op_id].digest
                if digest is None:
                    new[operation.op_id] = operation
                elif digest != operation.digest:
                    raise IdentifierReused(
                        f"operation id {operation.op_id!r} is already used in queue {self.resource!r} for another "
                        "payload or partition: draw a new id for a new operation"
                    )
            if new:
                await tx.add_all(OPERATIONS, [operation.to_record() for operation in new.values()])
            return len(new)

        return await self._database.transaction([OPERATIONS, RECEIPTS], "readwrite", body)

    async def recover(self, grant: Grant) -> int:
        """Return everything in flight to the queue, its outcome unknown; how many there were.

        To be called before ``grant``'s holder claims: whatever is in flight then was left by somebody who is no more.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction) -> int:
            await require_current(tx, grant)
            now = self._clock.wall()
            orphans = [_unknown(operation, now).to_record() for operation in await self._list(tx, "in-flight")]
            if orphans:
                await tx.put_all(OPERATIONS, orphans)
            return len(orphans)

        return await self._database.transaction([FENCING, OPERATIONS], "readwrite", body)

    async def note_retention(self, seconds: float) -> None:
        """Remember that the receiver forgets operation ids after so many seconds. The least that it ever said counts:
        what it had forgotten once, it does not know again."""

        async def body(tx: Transaction) -> None:
            if seconds < await self._retention(tx):
                await tx.put(COUNTERS, {"key": f"retention:{self.resource}", "value": seconds})

        await self._database.transaction([COUNTERS], "readwrite", body)

    async def _retention(self, tx: Transaction) -> float:
        record = await tx.get(COUNTERS, f"retention:{self.resource}")
        return float(record["value"]) if record else RETENTION

    async def claim(self, grant: Grant, limit: int) -> tuple[list[Operation], list[Operation], float | None]:
        """Claim up to ``limit`` operations that may be sent now, or ``CLAIM_SIZE`` characters, but at least one.

        Returns the claimed ones in order, those found too old to be ever sent again (now dead), and the seconds until
        the next waiting one is due (``None`` if none waits).

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction) -> tuple[list[Operation], list[Operation], float | None]:
            await require_current(tx, grant)
            now = self._clock.wall()
            oldest = now - await self._retention(tx) * (1 - _MARGIN)
            blocked = {operation.partition for operation in await self._list(tx, "in-flight")}
            claimed: list[Operation] = []
            dead: list[Operation] = []
            due: float | None = None
            after, size, room, full = 0, _FIRST_PAGE, CLAIM_SIZE, False
            while not full:
                page = await self._page(tx, "queued", after, size)
                for operation in page:
                    wait = operation.not_before - now
                    if operation.partition in blocked:
                        continue
                    if operation.unknown_since and operation.unknown_since < oldest:
                        dead.append(operation.changed(state="dead", reason="outcome-unknown"))
                    elif wait > 0 and now >= operation.delayed_at:
                        blocked.add(operation.partition)
                        due = wait if due is None else min(due, wait)
                    elif claimed and len(operation.payload) > room:
                        full = True
                    else:
                        claimed.append(operation.changed(state="in-flight", epoch=grant.epoch, claimed_at=now))
                        room -= len(operation.payload)
                        full = len(claimed) == limit
                    if full:
                        break
                if len(page) < size:
                    break
                after = page[-1].ordinal
                if sum(len(operation.payload) for operation in page) < CLAIM_SIZE // 4:
                    size = min(2 * size, _LAST_PAGE)
            if claimed or dead:
                await tx.put_all(OPERATIONS, [operation.to_record() for operation in [*claimed, *dead]])
            return claimed, dead, due

        return await self._database.transaction([FENCING, OPERATIONS, COUNTERS], "readwrite", body)

    async def settle(
        self, grant: Grant, claimed: Sequence[Operation], outcomes: Mapping[str, Outcome], delays: Mapping[str, float]
    ) -> list[Operation]:
        """Write down what became of claimed operations; returns those that died.

        An operation without outcome goes back as it was. ``delays`` holds seconds to wait, by operation id.

        Raises:
            LeadershipLost: ``grant`` is not the newest; its successor decides about these operations.
        """

        async def body(tx: Transaction) -> list[Operation]:
            await require_current(tx, grant)
            now = self._clock.wall()
            done: list[Operation] = []
            left: list[Operation] = []
            for item in claimed:
                outcome = outcomes.get(item.op_id)
                if outcome is not None and outcome.done:
                    done.append(item)
                else:
                    left.append(_after(item, outcome, now, delays.get(item.op_id, 0.0)))
            if left:
                await tx.put_all(OPERATIONS, [operation.to_record() for operation in left])
            if done:
                await self._commit(tx, done, now)
            return [operation for operation in left if operation.state == "dead"]

        return await self._database.transaction([FENCING, OPERATIONS, RECEIPTS, COUNTERS], "readwrite", body)

    async def _commit(self, tx: Transaction, done: Sequence[Operation], now: float) -> None:
        await tx.delete_all(OPERATIONS, [operation.ordinal for operation in done])
        receipts = [
            {"queue": self.resource, "op_id": item.op_id, "digest": item.digest, "settled_at": now} for item in done
        ]
        await tx.put_all(RECEIPTS, receipts)
        key = f"done:{self.resource}"
        counter = await tx.get(COUNTERS, key)
        await tx.put(COUNTERS, {"key": key, "value": (counter["value"] if counter else 0) + len(done)})
        # Forget a few old receipts with each settlement: no sweep ever has to delete many at once.
        old = KeyRange([self.resource], [self.resource, now - RETENTION])
        expired = await tx.get_all(RECEIPTS, old, index=SETTLED, count=_TRIM)
        if expired:
            await tx.delete_all(RECEIPTS, [[item["queue"], item["op_id"]] for item in expired])

    async def stats(self) -> QueueStats:
        """How many operations are in which state."""

        async def body(tx: Transaction) -> QueueStats:
            queued = await tx.count(OPERATIONS, KeyRange.prefix(self.resource, "queued"), index=LINE)
            in_flight = await tx.count(OPERATIONS, KeyRange.prefix(self.resource, "in-flight"), index=LINE)
            dead = await tx.count(OPERATIONS, KeyRange.prefix(self.resource, "dead"), index=LINE)
            counter = await tx.get(COUNTERS, f"done:{self.resource}")
            oldest = await tx.get_all(OPERATIONS, KeyRange.prefix(self.resource, "queued"), index=LINE, count=1)
            age = max(0.0, self._clock.wall() - oldest[0]["enqueued_at"]) if oldest else None
            return QueueStats(queued, in_flight, counter["value"] if counter else 0, dead, age)

        return await self._database.transaction([OPERATIONS, COUNTERS], "readonly", body)

    async def dead_letters(self) -> list[Operation]:
        """The operations that need a person, oldest first, each with its reason."""

        async def body(tx: Transaction) -> list[Operation]:
            return await self._list(tx, "dead")

        return await self._database.transaction([OPERATIONS], "readonly", body)

    async def retry_dead(self, op_ids: Sequence[str]) -> int:
        """Queue dead operations again (at their old place in their partition); how many there were."""
        wanted = set(op_ids)

        async def body(tx: Transaction) -> int:
            found = [operation for operation in await self._list(tx, "dead") if operation.op_id in wanted]
            if found:
                again = [item.changed(state="queued", attempts=0, not_before=0.0, unknown_since=0.0) for item in found]
                await tx.put_all(OPERATIONS, [operation.to_record() for operation in again])
            return len(found)

        return await self._database.transaction([OPERATIONS], "readwrite", body)

    async def remove_dead(self, op_ids: Sequence[str]) -> int:
        """Delete dead operations for good; how many there were."""
        wanted = set(op_ids)

        async def body(tx: Transaction) -> int:
            found = [operation.ordinal for operation in await self._list(tx, "dead") if operation.op_id in wanted]
            if found:
                await tx.delete_all(OPERATIONS, found)
            return len(found)

        return await self._database.transaction([OPERATIONS], "readwrite", body)

    async def _list(self, tx: Transaction, state: OperationState) -> list[Operation]:
        records = await tx.get_all(OPERATIONS, KeyRange.prefix(self.resource, state), index=LINE)
        return [Operation.from_record(record) for record in records]

    async def _page(self, tx: Transaction, state: OperationState, after: int, size: int) -> list[Operation]:
        keys = KeyRange([self.resource, state, after], [self.resource, state, []], lower_open=True)
        return [Operation.from_record(record) for record in await tx.get_all(OPERATIONS, keys, index=LINE, count=size)]


def _after(operation: Operation, outcome: Outcome | None, now: float, delay: float) -> Operation:
    """The operation after an attempt that did not commit it."""
    back = operation.changed(state="queued", epoch=0, claimed_at=0.0)
    if outcome is None or outcome.status == "skipped":
        return back
    if outcome.status == "rejected":
        return back.changed(state="dead", reason=outcome.detail or "rejected")
    if outcome.status == "retry":
        return back.changed(
            attempts=operation.attempts + 1, not_before=now + delay, delayed_at=now, reason=outcome.detail
        )
    return _unknown(operation, now).changed(not_before=now + delay, delayed_at=now, reason=outcome.detail)


def _unknown(operation: Operation, now: float) -> Operation:
    """The operation back in the queue, its outcome unknown since it was claimed (a later attempt changes nothing)."""
    since = operation.unknown_since or operation.claimed_at or now
    return operation.changed(state="queued", epoch=0, claimed_at=0.0, unknown_since=since)
