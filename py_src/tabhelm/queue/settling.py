"""What became of claimed operations, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tabhelm.fencing.schema import CLAIMS, OPERATIONS, PARTITIONS, RECEIPTS, SETTLED
from tabhelm.ports import KeyRange, Transaction
from tabhelm.ports.database import Record
from tabhelm.queue.claims import Claim
from tabhelm.queue.letters import bury
from tabhelm.queue.options import Rejected
from tabhelm.queue.partitions import ready
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.totals import Totals

RETENTION = 30 * 86_400.0
"""Seconds that receipts are kept, and after which an operation of unknown outcome is never sent again, unless the
receiver advertises that it remembers operation ids for a shorter time (``Tabhelm-Retention``)."""
_TRIM = 3
"""Receipts, each of a whole settlement, that are forgotten with a later one."""
_RUN = 4
"""From so many operations on, a run of a partition is deleted as a range."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of a claim's operations. One without outcome goes back as it was, unless it is among the ones
    ``left`` in the claim. ``delays`` holds seconds to wait, by operation id."""

    claim: Claim
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    delays: Mapping[str, float] = field(default_factory=dict)
    left: Sequence[Operation] = ()

    @property
    def done(self) -> list[Operation]:
        return [item for item in self.claim.operations if self.is_done(item)]

    def is_done(self, operation: Operation) -> bool:
        outcome = self.outcomes.get(operation.op_id)
        return outcome is not None and outcome.done

    def merged(self, other: Settlement) -> Settlement:
        """Both, of one claim that is settled bit by bit."""
        left = min(self.left, other.left, key=len)
        return Settlement(self.claim, {**self.outcomes, **other.outcomes}, {**self.delays, **other.delays}, left)


class Settling:
    """One settlement inside its transaction. What it must know is asked for at once, and awaited by ``run``.

    ``deleted`` says that what is done was deleted before."""

    def __init__(
        self, tx: Transaction, queue: str, settlement: Settlement, now: float, rejected: Rejected, *, deleted: bool
    ) -> None:
        self._tx = tx
        self._queue = queue
        self._settlement = settlement
        self._now = now
        self._rejected = rejected
        self._died: list[Operation] = []
        self._held = tx.get(CLAIMS, [queue, settlement.claim.number])
        still = {item.ordinal for item in settlement.left}
        self._items = [item for item in settlement.claim.operations if item.ordinal not in still]
        self._done = [item for item in self._items if settlement.is_done(item)]
        runs = [] if deleted else _runs(settlement.claim.operations, self._done)
        self._runs = [
            (run, keys := KeyRange(run[0].place, run[-1].place), tx.count(OPERATIONS, keys))
            for run in runs
            if len(run) >= _RUN
        ]
        self._receipts = Receipts(tx, queue, now) if self._done else None

    async def run(self, totals: Totals) -> tuple[list[Operation], bool]:
        """Write it down: the operations that died, and whether the totals changed."""
        held, tx, queue, settlement = await self._held, self._tx, self._queue, self._settlement
        if held is None:
            return [], False
        if left := settlement.left:
            tx.put(CLAIMS, {**held, "ordinals": [item.ordinal for item in left], "partitions": _partitions(left)})
        else:
            tx.delete(CLAIMS, [queue, settlement.claim.number])
        taken = set(held["ordinals"])
        done = [item for item in self._done if item.ordinal in taken]
        back: list[Operation] = []
        changed: list[Record] = []
        for item in self._items:
            outcome = settlement.outcomes.get(item.op_id)
            if item.ordinal not in taken or settlement.is_done(item):
                continue
            if outcome is not None and outcome.status == "rejected":
                if not self._bury(totals, item, outcome):
                    continue
            elif outcome is not None and (outcome.status != "skipped" or item.op_id in settlement.delays):
                changed.append(self._after(item, outcome).to_record())
            back.append(item)
        tx.put_all(OPERATIONS, changed)
        # Ready, though it may wait, or be blocked: something else may stand before it by now. The next claim will see.
        tx.put_all(PARTITIONS, [ready(queue, name) for name in _partitions(back)])
        if done and self._receipts is not None:
            await self._delete(done)
            await self._receipts.write(totals, done)
        return self._died, bool(done or self._died)

    def _bury(self, totals: Totals, operation: Operation, outcome: Outcome) -> bool:
        """Whether it blocks its partition: one stopper a partition is enough."""
        stopped = any(dead.blocks and dead.partition == operation.partition for dead in self._died)
        block = self._rejected == "block" and not stopped
        reason = outcome.detail or "rejected"
        self._died.append(bury(self._tx, totals, operation, reason, self._now, block=block))
        return block

    def _after(self, operation: Operation, outcome: Outcome) -> Operation:
        """The operation after an attempt that neither committed nor rejected it."""
        changes: dict[str, Any] = {"reason": outcome.detail}
        if outcome.status in ("retry", "failed"):
            changes["attempts"] = operation.attempts + 1
        if outcome.status in ("unknown", "failed"):
            changes["unknown_since"] = operation.unknown_since or self._settlement.claim.at
        delay = self._settlement.delays.get(operation.op_id, 0.0)
        if delay > 0:
            changes |= {"not_before": self._now + delay, "delayed_at": self._now}
        return operation.changed(**changes)

    async def _delete(self, done: Sequence[Operation]) -> None:
        """Delete runs of the line, each as one range if nothing else lies inside: a dead letter may have been put back
        at its old place since the claim. What was deleted before is no longer there."""
        whole: list[KeyRange] = []
        gone: set[int] = set()
        for run, keys, count in self._runs:
            if await count == len(run) and len(done) == len(self._done):
                whole.append(keys)
                gone.update(item.ordinal for item in run)
        self._tx.delete_all(OPERATIONS, [item.place for item in done if item.ordinal not in gone])
        self._tx.delete_ranges(OPERATIONS, whole)


class Receipts:
    """What is written down of operations that are done. Asks at once for old receipts, to forget them."""

    def __init__(self, tx: Transaction, queue: str, now: float) -> None:
        self._tx = tx
        self._queue = queue
        self._now = now
        # A few with each settlement: no sweep ever has to delete many at once.
        old = KeyRange([queue], [queue, now - RETENTION])
        self._expired = tx.get_all(RECEIPTS, old, index=SETTLED, count=_TRIM)

    async def write(self, totals: Totals, done: Sequence[Operation]) -> None:
        """One record for all of them: a hundred would cost more than all the rest of a settlement."""
        receipt = {
            "queue": self._queue,
            "ordinal": done[0].ordinal,
            "settled_at": self._now,
            "identifiers": [[self._queue, item.op_id] for item in done],
            "digests": [item.digest for item in done],
        }
        self._tx.put(RECEIPTS, receipt)
        totals.live -= len(done)
        totals.done += len(done)
        totals.bytes -= sum(item.size for item in done)
        if expired := await self._expired:
            self._tx.delete_all(RECEIPTS, [[item["queue"], item["ordinal"]] for item in expired])


def _runs(operations: Sequence[Operation], done: Sequence[Operation]) -> list[list[Operation]]:
    """Those done, grouped: neighbours of one partition in a claim, with none between that is not done."""
    runs: list[list[Operation]] = []
    running: dict[str, list[Operation]] = {}
    ordinals = {item.ordinal for item in done}
    for item in operations:
        if item.ordinal not in ordinals:
            running.pop(item.partition, None)
        elif item.partition in running:
            running[item.partition].append(item)
        else:
            runs.append(run := [item])
            running[item.partition] = run
    return runs


def _partitions(operations: Sequence[Operation]) -> list[str]:
    return list(dict.fromkeys(item.partition for item in operations))
