"""A tab's handle on an offline queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tabhelm.errors import DatabaseClosed, InvalidPayload, NotCloneable
from tabhelm.json_text import exact_text
from tabhelm.leadership import LeaderContext
from tabhelm.ports.database import Opaque
from tabhelm.queue.batches import Batch, batches
from tabhelm.queue.cloning import cloned
from tabhelm.queue.flusher import flush
from tabhelm.queue.letters import export
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.records import DEFAULT_PARTITION, NewOperation, Operation, QueueStats, draw_operation_id
from tabhelm.queue.shared import SharedQueue

_REOPENINGS = 5


class Queue:
    """Enqueue from any tab; flushing is for the leader of the queue's resource."""

    def __init__(self, name: str, shared: SharedQueue, options: QueueOptions | None = None) -> None:
        self.name = name
        self.shared = shared
        self.options = options or QueueOptions()

    async def enqueue(self, payload: Any, *, partition: str = DEFAULT_PARTITION, op_id: str | None = None) -> str:
        """Store one operation and return its id; durable when it returns.

        ``payload`` is what JSON can hold (with an own sender also ``bytes``). Operations of one ``partition`` are
        applied in order. ``op_id`` is drawn unless given; the same id with the same payload again does nothing.

        Raises:
            InvalidPayload, IdentifierReused, QueueFull, QuotaExceeded, DatabaseError
        """
        operation = self._new(payload, partition, op_id)
        await self.enqueue_all([operation])
        return operation.op_id

    async def enqueue_many(self, payloads: Iterable[Any], *, partition: str = DEFAULT_PARTITION) -> list[str]:
        """Store many operations in one transaction, all or none, in this order; returns their ids."""
        operations = [self._new(payload, partition, None) for payload in payloads]
        await self.enqueue_all(operations)
        return [operation.op_id for operation in operations]

    async def enqueue_all(self, operations: Sequence[NewOperation]) -> int:
        """Store many operations in one transaction, all or none; returns how many were new."""
        if not operations:
            return 0
        added = await self._store(operations)
        if added:
            self.shared.changed()
        return added

    def _new(self, payload: Any, partition: str, op_id: str | None) -> NewOperation:
        services = self.shared.services
        drawn = op_id is None
        op_id = op_id if op_id is not None else draw_operation_id(services.clock, services.entropy)
        if self.options.payloads == "json":
            return NewOperation(op_id, _json(payload), partition, fresh=drawn)
        copy, digest, size = cloned(payload)
        return NewOperation(op_id, "", partition, fresh=drawn, value=Opaque(copy), value_digest=digest, value_size=size)

    async def _store(self, operations: Sequence[NewOperation]) -> int:
        # Storage that is wiped closes what is under way, sometimes more than once; ids make the repetition harmless.
        for _ in range(_REOPENINGS):
            try:
                return await self.shared.store.enqueue(operations, self.options)
            except DatabaseClosed:
                operations = [replace(each, fresh=False) for each in operations]
        return await self.shared.store.enqueue(operations, self.options)

    def batches(self, context: LeaderContext, *, limit: int | None = None) -> AsyncIterator[Batch]:
        """Batches of at most ``limit`` operations to send under ``context``'s leadership (see ``flusher.batches``)."""
        return batches(self.shared, context, replace(self.options, batch=limit or self.options.batch))

    async def flush(
        self,
        context: LeaderContext,
        endpoint: str | None = None,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """The built-in leader loop: send everything by the queue's own sender, or to a fenced receiver (``endpoint``),
        for as long as the tenure stands. ``limit`` and ``timeout`` stand for the options ``batch`` and
        ``send_timeout``."""
        options = replace(
            self.options,
            endpoint=endpoint or self.options.endpoint,
            batch=limit or self.options.batch,
            send_timeout=timeout or self.options.send_timeout,
        )
        await flush(self.shared, context, options)

    async def stats(self) -> QueueStats:
        """How many operations are queued, in flight, done and dead, how many bytes they take, and how fast they go."""
        return await self.shared.stats()

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

    async def export_dead(self) -> str:
        """JSON text of all dead operations: ids, payloads, reasons, attempts, times."""
        return export(await self.dead_letters())

    def resume(self) -> None:
        """Go on after ``queue-paused`` (signed in again)."""
        self.shared.resume()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back when something may have changed; returns the way to stop."""
        return self.shared.subscribe(listener)


def _json(payload: Any) -> str:
    try:
        return exact_text("payload", payload)  # the very text that a page makes of the same
    except (NotCloneable, TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"payload is not what JSON can hold: {error}") from None
