"""A tab's handle on an offline queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tabhelm.errors import DatabaseClosed, DatabaseError, InvalidPayload, NotCloneable
from tabhelm.json_text import exact_text
from tabhelm.leadership import LeaderContext
from tabhelm.ports.database import Opaque
from tabhelm.queue.batches import Batch, batches
from tabhelm.queue.cloning import cloned
from tabhelm.queue.flusher import flush
from tabhelm.queue.letters import export
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.records import DEFAULT_PARTITION, Item, NewOperation, Operation, QueueStats, draw_operation_id
from tabhelm.queue.shared import SharedQueue

_REOPENINGS = 5
_ITEM_KEYS = frozenset({"payload", "partition", "id", "op_id"})


class Queue:
    """Enqueue from any tab; flushing is for the leader of the queue's resource."""

    def __init__(self, name: str, shared: SharedQueue, options: QueueOptions | None = None) -> None:
        self.name = name
        self.shared = shared
        self.options = options or QueueOptions()

    async def enqueue(self, payload: Any, *, partition: str = DEFAULT_PARTITION, op_id: str | None = None) -> str:
        """Store one operation and return its id; durable when it returns.

        ``payload`` is what JSON can hold, or with an own sender what ``cloning.cloned`` takes (``bytes``, sets, Blobs).
        Operations of one ``partition`` are applied in order. ``op_id`` is drawn unless given; the same id with the same
        payload again does nothing.

        Raises:
            InvalidPayload: the payload, in a place that the message names, cannot be stored; or the partition or the id
                is not 1 to 200 printable ASCII characters.
            IdentifierReused: the id is known with another payload or partition.
            QueueFull: ``max_operations`` or ``max_bytes`` does not allow it.
            QuotaExceeded: the origin's storage is full; nothing was stored.
            DatabaseError: whether it was stored is not known: enqueue it again with the same ``op_id``, which is that
                of the error's ``op_ids``.
        """
        operation = self._new("", Item(payload, partition, op_id), partition)
        await self.enqueue_all([operation])
        return operation.op_id

    async def enqueue_many(self, items: Iterable[Any], *, partition: str = DEFAULT_PARTITION) -> list[str]:
        """Store many operations in one transaction, all or none, in this order; returns their ids.

        Each of ``items`` is a payload, or an ``Item(payload, partition, op_id)`` with a partition or an id of its own.

        Raises:
            InvalidPayload, IdentifierReused, QueueFull, QuotaExceeded, DatabaseError: as for ``enqueue``; the place in
                a payload begins with ``items[3].payload``. Nothing was stored, except perhaps after a DatabaseError.
            InvalidPayload: ``items`` is no list but one dict, text or the like; or one of them is an item as JavaScript
                writes it, ``{"payload": ..., "partition": ...}``: here that is an ``Item``, also around such a payload.
        """
        if isinstance(items, (Mapping, str, bytes, bytearray, memoryview)) or not isinstance(items, Iterable):
            raise InvalidPayload(f"items is of type {type(items).__name__}: a list of payloads or Items is expected")
        operations = [self._new(f"items[{at}].", _item(at, item), partition) for at, item in enumerate(items)]
        await self.enqueue_all(operations)
        return [operation.op_id for operation in operations]

    async def enqueue_all(self, operations: Sequence[NewOperation]) -> int:
        """Store operations whose payloads were made ready elsewhere (those of a page), all or none; returns how many
        were new. An app calls ``enqueue_many``.

        Raises:
            IdentifierReused, QueueFull, QuotaExceeded, DatabaseError: as for ``enqueue``.
        """
        if not operations:
            return 0
        try:
            added = await self._store(operations)
        except DatabaseError as error:
            error.op_ids = tuple(operation.op_id for operation in operations)
            raise
        if added:
            self.shared.changed()
        return added

    def _new(self, where: str, item: Item, partition: str) -> NewOperation:
        services, what = self.shared.services, f"{where}payload"
        drawn = item.op_id is None
        op_id = item.op_id if item.op_id is not None else draw_operation_id(services.clock, services.entropy)
        partition = partition if item.partition is None else item.partition
        if self.options.payloads == "json":
            return NewOperation(op_id, _json(what, item.payload), partition, fresh=drawn)
        copy, digest, size = cloned(item.payload, what)
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
        """Batches of at most ``limit`` operations (else the option ``batch``) to send under ``context``'s leadership,
        as they become due; waits when there are none, and ends only by an error.

        One loop at a time in a tenure: a second one takes over what the first has in flight.

        Raises:
            InvalidOptions: ``limit`` is not 1 to 1,000.
            LeadershipLost: the tenure ended.
            WrongResource: the tenure is of another resource than this queue's.
        """
        return batches(self.shared, context, self._with(batch=limit))

    async def flush(
        self,
        context: LeaderContext,
        endpoint: str | None = None,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """The built-in leader loop: send everything by the queue's own sender, or to a fenced receiver (``endpoint``),
        for as long as the tenure stands. ``limit`` stands for the option ``batch``, ``timeout`` for ``send_timeout``:
        seconds that one send may take.

        Raises:
            InvalidOptions: one of these is not valid, or there is neither a sender nor an endpoint.
            LeadershipLost: the tenure ended.
            WrongResource: the tenure is of another resource than this queue's.
        """
        await flush(self.shared, context, self._with(endpoint=endpoint, batch=limit, send_timeout=timeout))

    def _with(self, **given: Any) -> QueueOptions:
        return replace(self.options, **{key: value for key, value in given.items() if value is not None})

    async def stats(self) -> QueueStats:
        """How many operations are queued, in flight, done and dead, how many bytes they take, and how fast they go.

        Raises:
            DatabaseError: the store could not be read.
        """
        return await self.shared.stats()

    async def dead_letters(self) -> list[Operation]:
        """The operations that need a person, oldest first, each with its reason.

        Raises:
            DatabaseError: the store could not be read.
        """
        return await self.shared.store.dead_letters()

    async def retry_dead(self, op_ids: Sequence[str]) -> int:
        """Queue these dead operations again, at their old places, as if never tried; how many there were. Other ids are
        passed over.

        Raises:
            QuotaExceeded, DatabaseError: it was not written, or that is not known: it may be called again.
        """
        count = await self.shared.store.retry_dead(op_ids)
        self.shared.changed()
        return count

    async def remove_dead(self, op_ids: Sequence[str]) -> int:
        """Delete these dead operations for good; how many there were. Other ids are passed over.

        Raises:
            QuotaExceeded, DatabaseError: as for ``retry_dead``.
        """
        count = await self.shared.store.remove_dead(op_ids)
        self.shared.changed()
        return count

    async def export_dead(self) -> str:
        """JSON text of all dead operations: ids, payloads, reasons, attempts, times (seconds since 1970), and whether
        they block.

        Raises:
            DatabaseError: the store could not be read.
        """
        return export(await self.dead_letters())

    def resume(self) -> None:
        """Go on after ``queue-paused`` (signed in again)."""
        self.shared.resume()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back when something may have changed; returns the way to stop."""
        return self.shared.subscribe(listener)


def _item(at: int, given: Any) -> Item:
    if isinstance(given, Item):
        return given
    if isinstance(given, dict) and "payload" in given and len(given) > 1 and _ITEM_KEYS.issuperset(given):
        raise InvalidPayload(
            f"items[{at}] has the keys {', '.join(map(repr, given))}, as JavaScript writes an item: here it is "
            "tabhelm.queue.Item(payload, partition, op_id); if it is a payload itself, wrap it: Item(payload=...)"
        )
    return Item(given)


def _json(what: str, payload: Any) -> str:
    try:
        return exact_text(what, payload)  # the very text that a page makes of the same
    except (NotCloneable, TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"{what} is not what JSON can hold: {error}") from None
