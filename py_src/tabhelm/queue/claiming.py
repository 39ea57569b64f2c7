"""Which operations may be sent now: found by partition, so that what cannot be sent costs nothing.

A claim looks at the partitions that are ready, in the order of their names from where the last claim ended, and takes
from the head of each what may go. It reads a whole stretch of the line at once while that is useful: many small
partitions then cost one request, like one large partition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tabhelm.fencing.epochs import Grant, require_current
from tabhelm.fencing.schema import CLAIMS, DUE, OPERATIONS, ORDER, PARTITIONS, READY
from tabhelm.ports import KeyRange, Transaction
from tabhelm.ports.database import Record
from tabhelm.queue.letters import bury
from tabhelm.queue.options import Rejected
from tabhelm.queue.partitions import blocked, ready, waiting
from tabhelm.queue.records import Operation
from tabhelm.queue.totals import Book, Totals

CLAIM_SIZE = 1_000_000
"""Bytes of payload after which a claim is full: a request that takes long must not make its engine look dead."""
_MARGIN = 0.1
"""This part of the retention is not used up: requests take time, and two clocks run at two speeds."""
_LOOK = 128
"""Partitions that are asked for at a time."""
_VISITS = 512
"""Partitions after which a claim that found nothing lets others have the database."""
_BESIDE = 16
"""Partitions that are read at the same time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Operations in flight, in order. ``number`` names this claim alone, ``at`` is when it was made."""

    number: str
    operations: tuple[Operation, ...]
    at: float
    retention: float = 0.0
    """How long the receiver remembers operation ids, in seconds, as far as was known."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Up to ``limit`` operations that may be sent now, or ``CLAIM_SIZE`` bytes, but at least one.

    None of a partition that is in flight. Partitions get their turn in the order of their names, those behind ``after``
    first. An operation of unknown outcome that is older than ``retention`` is found dead, and never sent again.
    """

    limit: int
    retention: float
    lanes: int = 1
    """In how many claims, if there is not enough for each to be full: partitions are spread over them."""
    after: str = ""
    alone: Mapping[str, str] = field(default_factory=dict)
    """Operations, with their partitions, that are claimed before all others, each by itself."""
    rejected: Rejected = "dead"
    known: Collection[str] | None = None
    """The claims that are under way. Of others nobody heard that they had been written: they are given back, for all
    that is known with an unknown outcome. ``None``: leave them alone."""


class Found(NamedTuple):
    """``claims``: what may be sent, if anything. ``dead``: operations that died. ``due``: seconds until there may be
    more (``None``: nothing waits). ``after``: the partition last looked at. ``more``: not all was looked at."""

    claims: tuple[Claim, ...] = ()
    dead: tuple[Operation, ...] = ()
    due: float | None = None
    after: str = ""
    more: bool = False

    @property
    def claim(self) -> Claim | None:
        return self.claims[0] if self.claims else None

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(operation for claim in self.claims for operation in claim.operations)


class Claiming:
    """One claim inside its transaction."""

    def __init__(self, tx: Transaction, book: Book, queue: str, grant: Grant, now: float, wanted: Wanted) -> None:
        self._tx = tx
        self._book = book
        self._queue = queue
        self._grant = grant
        self._now = now
        self._wanted = wanted
        self._limit = wanted.limit
        self._oldest = now - wanted.retention * (1 - _MARGIN)
        self._block = wanted.rejected == "block"
        self._alone = wanted.alone
        self._totals = Totals()
        self._claimed: list[Operation] = []
        self._dead: list[Operation] = []
        self._due: float | None = None
        self._room = CLAIM_SIZE
        self._full = False
        self._visited: set[str] = set()
        self._emptied: list[str] = []
        self._after = wanted.after

    async def run(self, first: int) -> Found:
        """Claim. ``first`` is the number of the first claim in this epoch."""
        tx, queue = self._tx, self._queue
        claims = tx.get_all(CLAIMS, KeyRange.prefix(queue))
        due = tx.get_all(PARTITIONS, KeyRange.prefix(queue), index=DUE, count=_LOOK)
        hints = tx.get_all(PARTITIONS, KeyRange.prefix(queue), index=READY, count=_LOOK)
        await require_current(tx, self._grant)
        self._totals = await self._book.totals()
        held, freed = await self._held(await claims)
        in_flight = {name for claim in held for name in claim["partitions"]}
        released = self._release(await due)
        await self._look(await hints, [*released, *freed], in_flight)
        tx.delete_all(PARTITIONS, [[queue, name] for name in self._emptied])
        made = [
            Claim(f"{self._grant.epoch}.{first + at}", tuple(part), self._now, self._wanted.retention)
            for at, part in enumerate(self._parts(sum(len(claim["ordinals"]) for claim in held)))
        ]
        tx.put_all(CLAIMS, [self._record(claim) for claim in made])
        if not made and (len(self._visited) >= _VISITS or len(released) == _LOOK):
            self._due = 0.0  # there may be more behind what was looked at
        return Found(tuple(made), tuple(self._dead), self._due, self._after, bool(made) and self._over)

    async def _held(self, claims: Sequence[Record]) -> tuple[list[Record], list[str]]:
        """The claims that are under way, and the partitions of those that are not, which are given back."""
        known = self._wanted.known
        lost = [] if known is None else [claim for claim in claims if claim["claim"] not in known]
        if not lost:
            return list(claims), []
        await _give_back(self._tx, self._queue, lost, self._now)
        freed = [name for claim in lost for name in claim["partitions"]]
        return [claim for claim in claims if claim not in lost], freed

    def _parts(self, in_flight: int) -> list[list[Operation]]:
        """What was taken, spread over free lanes for which there is nothing else."""
        lines: dict[str, list[Operation]] = {}
        for operation in self._claimed:
            lines.setdefault(operation.partition, []).append(operation)
        lanes = min(self._wanted.lanes, len(lines))
        if self._over:
            left = self._totals.live - in_flight - len(self._claimed)
            lanes -= min(self._wanted.lanes - 1, -(-left // self._limit))
        if lanes <= 1:
            return [self._claimed] if self._claimed else []
        parts: list[list[Operation]] = [[] for _ in range(lanes)]
        for line in sorted(lines.values(), key=len, reverse=True):
            min(parts, key=len).extend(line)
        return parts

    def _record(self, claim: Claim) -> Record:
        return {
            "queue": self._queue,
            "claim": claim.number,
            "epoch": self._grant.epoch,
            "claimed_at": claim.at,
            "ordinals": [operation.ordinal for operation in claim.operations],
            "partitions": list(dict.fromkeys(operation.partition for operation in claim.operations)),
        }

    def _release(self, records: Sequence[Record]) -> list[str]:
        """The partitions whose wait is over, which are ready from now on; the others say when to look again."""
        over: list[str] = []
        for record in records:
            if record["due"] <= self._now or self._now < record["since"]:
                over.append(record["partition"])
            else:
                self._wait(record["due"])
        self._tx.put_all(PARTITIONS, [ready(self._queue, name) for name in over])
        return over

    def _wait(self, due: float) -> None:
        left = due - self._now
        self._due = left if self._due is None else min(self._due, left)

    async def _look(self, first: Sequence[Record], released: list[str], in_flight: set[str]) -> None:
        """Visit ready partitions: those of suspects first, then all from where the last claim ended, round to there."""
        page = sorted({*(record["partition"] for record in first), *released})
        whole, after = len(first) < _LOOK, self._after
        for name in dict.fromkeys(self._alone.values()):
            if name not in in_flight and (not whole or name in page):
                await self._walk([name])
        if whole:
            at = bisect_right(page, after)
            for names in (page[at:], page[:at]):
                await self._walk([name for name in names if name not in in_flight])
            return
        for lower, upper in ((after, None), ("", after)):
            while not self._over and (upper is None or lower < upper):
                keys = KeyRange([self._queue, lower], [self._queue, [] if upper is None else upper], lower_open=True)
                records = await self._tx.get_all(PARTITIONS, keys, index=READY, count=_LOOK)
                names = [record["partition"] for record in records]
                await self._walk([name for name in names if name not in in_flight])
                if len(names) < _LOOK:
                    break
                lower = names[-1]

    @property
    def _over(self) -> bool:
        return self._full or len(self._visited) >= _VISITS

    async def _walk(self, names: list[str]) -> None:
        """Take from these partitions, which are in the order of their names, until the claim is full."""
        at = 0
        if len(names) > 1 and not self._full:
            at = await self._stretch(names)
        while at < len(names) and not self._over:
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
        return max(1, min(self._limit - len(self._claimed), int(self._room / max(1.0, mean)) + 1))

    async def _visit(self, name: str, line: Sequence[Operation], *, whole: bool) -> None:
        """Take what may go from the head of a partition. ``whole``: ``line`` is all of it."""
        if name in self._visited:
            return
        self._visited.add(name)
        self._after = name
        size = max(1, len(line))
        taken = False
        while True:
            for operation in line:
                if not self._may_go(operation, name, taken):
                    return
                taken = taken or self._claimed[-1:] == [operation]
                if self._full:
                    return
            if whole:
                # Nothing is left to look at: whoever enqueues, or brings back what was taken, writes the record again.
                self._emptied.append(name)
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
            self._dead.append(bury(self._tx, self._totals, operation, "outcome-unknown", self._now, block=block))
            if block:
                self._hint(blocked(self._queue, name), taken)
            return not block
        elif operation.not_before > self._now >= operation.delayed_at:
            self._wait(operation.not_before)
            self._hint(waiting(self._queue, name, operation.not_before, operation.delayed_at), taken)
        elif operation.op_id in self._alone and self._claimed:
            self._due = 0.0
        elif self._claimed and size > self._room:
            self._full = True
        else:
            self._claimed.append(operation)
            self._room -= size
            self._full = len(self._claimed) == self._limit or operation.op_id in self._alone
            return True
        return False

    def _hint(self, record: Record, taken: bool) -> None:
        if not taken:  # else the next claim finds it at the head
            self._tx.put(PARTITIONS, record)


async def recover(tx: Transaction, queue: str, grant: Grant, now: float) -> int:
    """Return everything in flight to the queue, its outcome unknown since its claim; how many there were."""
    asked = tx.get_all(CLAIMS, KeyRange.prefix(queue))
    await require_current(tx, grant)
    return await _give_back(tx, queue, await asked, now)


async def _give_back(tx: Transaction, queue: str, claims: Sequence[Record], now: float) -> int:
    orphans = [
        (claim, tx.get(OPERATIONS, [queue, ordinal], index=ORDER)) for claim in claims for ordinal in claim["ordinals"]
    ]
    changed: list[Record] = []
    for claim, found in orphans:
        record = await found
        if record is not None:
            record["unknown_since"] = record.get("unknown_since") or claim["claimed_at"] or now
            changed.append(record)
    tx.put_all(OPERATIONS, changed)
    tx.put_all(PARTITIONS, [ready(queue, name) for name in dict.fromkeys(record["partition"] for record in changed)])
    tx.delete_all(CLAIMS, [[queue, claim["claim"]] for claim in claims])
    return len(changed)


def _operations(records: Sequence[Record]) -> list[Operation]:
    return [Operation.from_record(record) for record in records]
