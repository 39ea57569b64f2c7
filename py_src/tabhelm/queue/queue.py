"""A tab's handle on an offline queue."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from tabhelm.errors import DatabaseClosed, InvalidPayload
from tabhelm.leadership import LeaderContext
from tabhelm.queue.flusher import BATCH, Batch, batches, flush
from tabhelm.queue.records import DEFAULT_PARTITION, NewOperation, Operation, QueueStats, draw_operation_id
from tabhelm.queue.sender import SEND_TIMEOUT
from tabhelm.queue.shared import SharedQueue

_REOPENINGS = 5


class Queue:
    """Enqueue from any tab; flushing is for the leader of the queue's resource."""

    def __init__(self, name: str, shared: SharedQueue) -> None:
        self.name = name
        self.shared = shared

    async def enqueue(self, payload: Any, *, partition: str = DEFAULT_PARTITION, op_id: str | None = None) -> str:
        """Store one operation and return its id; durable when it returns.

        ``payload`` is what JSON can hold. Operations of one ``partition`` are applied in order. ``op_id`` is drawn
        unless given; the same id with the same payload again does nothing.

        Raises:
            InvalidPayload, IdentifierReused, QuotaExceeded, DatabaseError
        """
        services = self.shared.services
        drawn = op_id is None
        op_id = op_id if op_id is not None else draw_operation_id(services.clock, services.entropy)
        await self.enqueue_all([NewOperation(op_id, _json(payload), partition, fresh=drawn)])
        return op_id

    async def enqueue_all(self, operations: Sequence[NewOperation]) -> int:
        """Store many operations in one transaction, all or none; returns how many were new."""
        if not operations:
            return 0
        added = await self._store(operations)
        if added:
            self.shared.changed()
        return added

    async def _store(self, operations: Sequence[NewOperation]) -> int:
        # Storage that is wiped closes what is under way, sometimes more than once; ids make the repetition harmless.
        for _ in range(_REOPENINGS):
            try:
                return await self.shared.store.enqueue(operations)
            except DatabaseClosed:
                continue
        return await self.shared.store.enqueue(operations)

    def batches(self, context: LeaderContext, *, limit: int = BATCH) -> AsyncIterator[Batch]:
        """Batches to send under ``context``'s leadership (see ``flusher.batches``)."""
        return batches(self.shared, context, limit=limit)

    async def flush(
        self, context: LeaderContext, endpoint: str, *, limit: int = BATCH, timeout: float = SEND_TIMEOUT
    ) -> None:
        """The built-in leader loop: send everything to a fenced receiver, for as long as the tenure stands."""
        await flush(self.shared, context, endpoint, limit=limit, timeout=timeout)

    async def stats(self) -> QueueStats:
        """How many operations are queued, in flight, done and dead."""
        return await self.shared.store.stats()

    async def dead_letters(self) -> list[Operation]:
        """The operations that need a person, each with its reason."""
        return await self.shared.store.dead_letters()

    async def retry_dead(self, op_ids: Sequence[str]) -> int:
        """Queue these dead operations again; how many there were."""
        count = await self.shared.store.retry_dead(op_ids)
        self.shared.changed()
        return count

    async def remove_dead(self, op_ids: Sequence[str]) -> int:
        """Delete these dead operations for good; how many there were."""
        count = await self.shared.store.remove_dead(op_ids)
        self.shared.changed()
        return count

    def resume(self) -> None:
        """Go on after ``queue-paused`` (signed in again)."""
        self.shared.resume()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back when something may have changed; returns the way to stop."""
        return self.shared.subscribe(listener)


def _json(payload: Any) -> str:
    try:
        return json.dumps(payload, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"payload is not what JSON can hold: {error}") from None
