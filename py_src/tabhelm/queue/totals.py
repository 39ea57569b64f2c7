"""Running totals of a queue: one record, changed in the same transactions as what it counts.

So that neither a progress bar nor a limit ever costs more because much is queued.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

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
    retention: float | None = None
    """The least that the receiver ever said of how long it remembers operation ids, in seconds."""

    @property
    def undone(self) -> int:
        """Operations that were acknowledged, and not yet committed nor removed."""
        return self.live + self.dead


def totals_key(queue: str) -> str:
    return f"queue:{queue}"


async def read_totals(tx: Transaction, queue: str) -> Totals:
    """The totals; counted afresh where their record is missing."""
    record = await tx.get(COUNTERS, totals_key(queue))
    if record is not None:
        return Totals(**{name: record[name] for name in _FIELDS if name in record})
    totals = Totals()
    for store in (OPERATIONS, DEAD_LETTERS):
        await _count(tx, queue, store, totals)
    return totals


async def write_totals(tx: Transaction, queue: str, totals: Totals, draw: Callable[[], str]) -> None:
    """Store the totals."""
    if not totals.born:
        totals.born = draw()
    tx.put(COUNTERS, {"key": totals_key(queue), **asdict(totals)})


async def recount(tx: Transaction, queue: str, totals: Totals) -> bool:
    """Count afresh what is there if that is not as many as the totals say; whether it was not. Operations were deleted
    when the storage was full and that could not be written down: they are done."""
    if await tx.count(OPERATIONS, KeyRange.prefix(queue)) == totals.live + totals.blocked:
        return False
    before = totals.live
    totals.live = totals.dead = totals.blocked = totals.bytes = 0
    for store in (OPERATIONS, DEAD_LETTERS):
        await _count(tx, queue, store, totals)
    totals.done += max(0, before - totals.live)
    return True


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
