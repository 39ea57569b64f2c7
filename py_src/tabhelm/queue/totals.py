"""Running totals of a queue: one record, changed in the same transactions as what it counts.

So that neither a progress bar nor a limit ever costs more because much is queued.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from tabhelm.fencing.schema import CLAIMS, COUNTERS, DEAD_LETTERS, OPERATIONS, ORDER
from tabhelm.ports import KeyRange, Transaction
from tabhelm.queue.records import Operation

_PAGE = 500
COUNTED = (OPERATIONS, DEAD_LETTERS, CLAIMS, COUNTERS)
"""The stores that must be open to read totals."""


@dataclass(slots=True)
class Totals:
    """``live``: queued or in flight. ``bytes``: of the payloads of all that are live or dead."""

    born: str = ""
    """Drawn when the queue began: another one means that the storage was deleted in between. Empty if nothing was ever
    written."""
    next: int = 1
    """The number of the next operation."""
    live: int = 0
    done: int = 0
    dead: int = 0
    blocked: int = 0
    """Partitions that wait for a person."""
    bytes: int = 0
    returned: int = 0
    """Operations that were dead and came back, to their old place in the line."""
    retention: float | None = None
    """The least that the receiver ever said of how long it remembers operation ids, in seconds."""

    @property
    def undone(self) -> int:
        """Operations that were acknowledged, and not yet committed nor removed."""
        return self.live + self.dead


def totals_key(queue: str) -> str:
    return f"queue:{queue}"


class Book:
    """The totals inside one transaction. They are asked for at once, and awaited by whoever needs them: what else is
    asked meanwhile comes with them."""

    def __init__(self, tx: Transaction, queue: str, draw: Callable[[], str]) -> None:
        self._tx = tx
        self._queue = queue
        self._draw = draw
        self._asked = tx.get(COUNTERS, totals_key(queue))
        self._totals: Totals | None = None
        self.born = ""
        """As it was before this transaction."""

    async def totals(self) -> Totals:
        """The totals; counted afresh where their record is missing."""
        if self._totals is None:
            record = await self._asked
            totals = self._totals = Totals()
            if record is None:
                await self._count(totals)
            else:
                for name in _FIELDS:
                    setattr(totals, name, record.get(name, getattr(totals, name)))
            self.born = totals.born
        return self._totals

    async def write(self) -> None:
        """Store the totals."""
        totals = await self.totals()
        totals.born = totals.born or self._draw()
        self._tx.put(COUNTERS, {"key": totals_key(self._queue)} | {name: getattr(totals, name) for name in _FIELDS})

    async def recount(self) -> bool:
        """Count afresh what is there if that is not as many as the totals say; whether it was not. Operations were
        deleted when the storage was full and that could not be written down: they are done."""
        totals = await self.totals()
        if await self._tx.count(OPERATIONS, KeyRange.prefix(self._queue)) == totals.live + totals.blocked:
            return False
        before = totals.live
        totals.live = totals.dead = totals.blocked = totals.bytes = 0
        await self._count(totals)
        totals.done += max(0, before - totals.live)
        return True

    async def _count(self, totals: Totals) -> None:
        for store in (OPERATIONS, DEAD_LETTERS):
            await _count(self._tx, self._queue, store, totals)


async def _count(tx: Transaction, queue: str, store: str, totals: Totals) -> None:
    after, index = 0, ORDER if store == OPERATIONS else None
    while True:
        keys = KeyRange([queue, after], [queue, []], lower_open=True)
        page = [Operation.from_record(record) for record in await tx.get_all(store, keys, index=index, count=_PAGE)]
        for operation in page:
            totals.next = max(totals.next, operation.ordinal + 1)
            if store == DEAD_LETTERS:
                totals.dead += 1
                totals.bytes += operation.size
                totals.blocked += operation.blocks
            elif not operation.blocks:
                totals.live += 1
                totals.bytes += operation.size
        if len(page) < _PAGE:
            return
        after = page[-1].ordinal


_FIELDS = tuple(field.name for field in fields(Totals))
