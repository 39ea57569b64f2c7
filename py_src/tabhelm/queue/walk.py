"""Which operations may be sent now: found by partition, so that what cannot be sent costs nothing.

A claim looks at the partitions that are ready, in the order of their names from where the last claim ended, and takes
from the head of each what may go. It reads a whole stretch of the line at once while that is useful: many small
partitions then cost one request, like one large partition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tabhelm.fencing.schema import OPERATIONS, PARTITIONS, READY
from tabhelm.ports import KeyRange, Transaction
from tabhelm.ports.database import Record
from tabhelm.queue.claims import CLAIM_SIZE, Wanted, oldest
from tabhelm.queue.letters import bury
from tabhelm.queue.partitions import blocked, waiting
from tabhelm.queue.records import Operation
from tabhelm.queue.totals import Totals

LOOK = 128
"""Partitions that are asked for at a time."""
_VISITS = 512
"""Partitions after which a claim that found nothing lets others have the database."""
_BESIDE = 16
"""Partitions that are read at the same time."""


class Walk:
    """From partition to partition, until there is enough for a claim."""

    def __init__(self, tx: Transaction, totals: Totals, queue: str, now: float, wanted: Wanted) -> None:
        self.claimed: list[Operation] = []
        """What may go, in order."""
        self.dead: list[Operation] = []
        self.due: float | None = None
        """Seconds until there may be more."""
        self.after = wanted.after
        """The partition last looked at, in the order of names."""
        self.emptied: list[str] = []
        """Partitions in which nothing is left to look at."""
        self._tx = tx
        self._totals = totals
        self._queue = queue
        self._now = now
        self._limit = wanted.limit
        self._oldest = oldest(now, wanted.retention)
        self._block = wanted.rejected == "block"
        self._alone = wanted.alone
        self._room = CLAIM_SIZE
        self._full = False
        self._visited: set[str] = set()

    @property
    def tired(self) -> bool:
        """Whether it looked at as many partitions as one transaction may."""
        return len(self._visited) >= _VISITS

    @property
    def over(self) -> bool:
        """Whether it ended before all was looked at."""
        return self._full or self.tired

    def wait(self, due: float) -> None:
        """Something is due then (wall clock)."""
        left = due - self._now
        self.due = left if self.due is None else min(self.due, left)

    async def look(self, first: Sequence[Record], released: list[str], in_flight: set[str]) -> None:
        """Visit ready partitions: those of suspects first, then all from where the last claim ended, round to there."""
        page = sorted({*(record["partition"] for record in first), *released})
        whole, after = len(first) < LOOK, self.after
        for name in dict.fromkeys(self._alone.values()):
            if name not in in_flight and (not whole or name in page):
                await self._walk([name])
        self.after = after  # else those before a suspect would wait until it is done
        if whole:
            at = bisect_right(page, after)
            for names in (page[at:], page[:at]):
                await self._walk([name for name in names if name not in in_flight])
            return
        for lower, upper in ((after, None), ("", after)):
            while not self.over and (upper is None or lower < upper):
                keys = KeyRange([self._queue, lower], [self._queue, [] if upper is None else upper], lower_open=True)
                records = await self._tx.get_all(PARTITIONS, keys, index=READY, count=LOOK)
                names = [record["partition"] for record in records]
                await self._walk([name for name in names if name not in in_flight])
                if len(names) < LOOK:
                    break
                lower = names[-1]

    async def _walk(self, names: list[str]) -> None:
        """Take from these partitions, which are in the order of their names, until the claim is full."""
        at = 0
        if len(names) > 1 and not self._full:
            at = await self._stretch(names)
        while at < len(names) and not self.over:
            beside = names[at : at + _BESIDE] if at else names[:1]  # alone first: mostly it is enough
            share = self._page() if len(beside) == 1 else max(4, self._page() // _BESIDE)
            asked = [self._tx.get_all(OPERATIONS, KeyRange.prefix(self._queue, name), count=share) for name in beside]
            for name, page in zip(beside, asked, strict=True):
                records = await page
                if not self._full:
                    await self._visit(name, _operations(records), whole=len(records) < share)
            at += len(beside)

    async def _stretch(self, names: list[str]) -> int:
        """Read one stretch of the line over many partitions; how many of them it covered."""
        size = self._page()
        keys = KeyRange([self._queue, names[0], 0], [self._queue, names[-1], []])
        page = _operations(await self._tx.get_all(OPERATIONS, keys, count=size))
        lines: dict[str, list[Operation]] = {}
        for operation in page:
            lines.setdefault(operation.partition, []).append(operation)
        last = page[-1].partition if len(page) == size else None
        covered = 0
        for name in names:
            if self._full or (last is not None and name > last):
                break
            await self._visit(name, lines.get(name, []), whole=name != last)
            covered += 1
        return covered

    def _page(self) -> int:
        """Records to read at a time: few where payloads are large."""
        mean = self._totals.bytes / max(1, self._totals.undone)
        return max(1, min(self._limit - len(self.claimed), int(self._room / max(1.0, mean)) + 1))

    async def _visit(self, name: str, line: Sequence[Operation], *, whole: bool) -> None:
        """Take what may go from the head of a partition. ``whole``: ``line`` is all of it."""
        if name in self._visited:
            return
        self._visited.add(name)
        self.after = name
        size = max(1, len(line))
        taken = False
        while True:
            for operation in line:
                if not self._may_go(operation, name, taken):
                    return
                taken = taken or self.claimed[-1:] == [operation]
                if self._full:
                    return
            if whole:
                # Nothing is left to look at: whoever enqueues, or brings back what was taken, writes the record again.
                self.emptied.append(name)
                return
            keys = KeyRange([self._queue, name, line[-1].ordinal], [self._queue, name, []], lower_open=True)
            line = _operations(await self._tx.get_all(OPERATIONS, keys, count=size))
            whole = len(line) < size

    def _may_go(self, operation: Operation, name: str, taken: bool) -> bool:
        """Claim an operation, or find it dead; false if the partition goes no further now."""
        size = operation.size
        if operation.blocks:
            self._hint(blocked(self._queue, name), taken)
        elif operation.unknown_since and operation.unknown_since < self._oldest:
            block = self._block
            self.dead.append(bury(self._tx, self._totals, operation, "outcome-unknown", self._now, block=block))
            if block:
                self._hint(blocked(self._queue, name), taken)
            return not block
        elif operation.not_before > self._now >= operation.delayed_at:
            self.wait(operation.not_before)
            self._hint(waiting(self._queue, name, operation.not_before, operation.delayed_at), taken)
        elif operation.op_id in self._alone and self.claimed:
            self.due = 0.0
        elif self.claimed and size > self._room:
            self._full = True
        else:
            self.claimed.append(operation)
            self._room -= size
            self._full = len(self.claimed) == self._limit or operation.op_id in self._alone
            return True
        return False

    def _hint(self, record: Record, taken: bool) -> None:
        if not taken:  # else the next claim finds it at the head
            self._tx.put(PARTITIONS, record)


def _operations(records: Sequence[Record]) -> list[Operation]:
    return [Operation.from_record(record) for record in records]
