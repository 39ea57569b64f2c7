"""What became of claimed operations, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tabhelm.fencing.epochs import Grant, require_current
from tabhelm.fencing.schema import CLAIMS, OPERATIONS, PARTITIONS, RECEIPTS, SETTLED
from tabhelm.ports import KeyRange, Transaction
from tabhelm.ports.database import Record
from tabhelm.queue.claiming import Claim
from tabhelm.queue.letters import bury
from tabhelm.queue.options import Rejected
from tabhelm.queue.partitions import blocked, ready, waiting
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.totals import Totals

RETENTION = 30 * 86_400.0
"""Seconds that receipts are kept, and after which an operation of unknown outcome is never sent again, unless the
receiver advertises that it remembers operation ids for a shorter time (``Tabhelm-Retention``)."""
_TRIM = 3
"""Receipts, each of a whole settlement, that are forgotten with a later one."""
_RUN = 4
"""From so many operations on, a run of a partition is deleted as a range."""


class Settling:
    """One settlement inside its transaction. ``counted`` says whether it changed the totals."""

    def __init__(self, tx: Transaction, totals: Totals, queue: str, now: float, rejected: Rejected) -> None:
        self._tx = tx
        self._totals = totals
        self._queue = queue
        self._now = now
        self._rejected = rejected
        self._died: list[Operation] = []
        self.counted = False

    async def run(
        self,
        grant: Grant,
        claim: Claim,
        outcomes: Mapping[str, Outcome],
        delays: Mapping[str, float],
        left: Sequence[Operation],
        *,
        deleted: bool,
    ) -> list[Operation]:
        tx = self._tx
        held = tx.get(CLAIMS, [self._queue, claim.number])
        await require_current(tx, grant)
        record = await held
        if record is None:
            return []
        if left:
            tx.put(CLAIMS, {**record, "ordinals": [item.ordinal for item in left], "partitions": _partitions(left)})
        else:
            tx.delete(CLAIMS, [self._queue, claim.number])
        done: list[Operation] = []
        changed: list[Operation] = []
        still = {item.ordinal for item in left}
        taken = set(record["ordinals"])
        hints: dict[str, Record] = {}
        """Where to look for what comes back."""
        for item in claim.operations:
            if item.ordinal in still or item.ordinal not in taken:
                continue
            outcome = outcomes.get(item.op_id)
            if outcome is None or outcome.status == "skipped":
                hints.setdefault(item.partition, ready(self._queue, item.partition))
            elif outcome.done:
                done.append(item)
            elif outcome.status == "rejected":
                hint = self._bury(item, outcome)
                if hint is not None:
                    hints[item.partition] = hint
            else:
                changed.append(back := self._back(item, claim, outcome, delays.get(item.op_id, 0.0)))
                hints.setdefault(item.partition, self._hint(back))
        tx.put_all(PARTITIONS, list(hints.values()))
        if changed:
            tx.put_all(OPERATIONS, [item.to_record() for item in changed])
        if done:
            if deleted:
                tx.delete_all(OPERATIONS, [item.place for item in done])  # some may be gone already
            else:
                await self._delete(_runs(claim.operations, done))
            await self._commit(done)
        self.counted = bool(done or self._died)
        return self._died

    async def note(self, grant: Grant, done: Sequence[Operation]) -> None:
        """Write down that operations are done which were never claimed."""
        await require_current(self._tx, grant)
        self._tx.delete_all(OPERATIONS, [item.place for item in done])
        await self._commit(done)

    def _hint(self, operation: Operation) -> Record:
        if operation.not_before > self._now:
            return waiting(self._queue, operation.partition, operation.not_before, self._now)
        return ready(self._queue, operation.partition)

    def _bury(self, operation: Operation, outcome: Outcome) -> Record | None:
        # One stopper a partition is enough.
        stopped = any(dead.blocks and dead.partition == operation.partition for dead in self._died)
        block = self._rejected == "block" and not stopped
        reason = outcome.detail or "rejected"
        self._died.append(bury(self._tx, self._totals, operation, reason, self._now, block=block))
        return blocked(self._queue, operation.partition) if block else None

    def _back(self, operation: Operation, claim: Claim, outcome: Outcome, delay: float) -> Operation:
        """The operation after an attempt that neither committed nor rejected it."""
        back = operation.changed(reason=outcome.detail)
        if outcome.status in ("retry", "failed"):
            back = back.changed(attempts=operation.attempts + 1)
        if outcome.status in ("unknown", "failed"):
            back = back.changed(unknown_since=operation.unknown_since or claim.at)
        if delay > 0:
            back = back.changed(not_before=self._now + delay, delayed_at=self._now)
        return back

    async def _delete(self, runs: Sequence[Sequence[Operation]]) -> None:
        """Delete runs of the line, each as one range if nothing else lies inside: a dead letter may have been put back
        at its old place since the claim."""
        tx = self._tx
        alone = [item for run in runs if len(run) < _RUN for item in run]
        counted = [
            (run, keys := KeyRange(run[0].place, run[-1].place), tx.count(OPERATIONS, keys))
            for run in runs
            if len(run) >= _RUN
        ]
        whole: list[KeyRange] = []
        for run, keys, count in counted:
            if await count == len(run):
                whole.append(keys)
            else:
                alone += run
        tx.delete_all(OPERATIONS, [item.place for item in alone])
        tx.delete_ranges(OPERATIONS, whole)

    async def _commit(self, done: Sequence[Operation]) -> None:
        tx, totals = self._tx, self._totals
        # One record for all of them: a hundred would cost more than all the rest of a settlement.
        receipt = {
            "queue": self._queue,
            "ordinal": done[0].ordinal,
            "settled_at": self._now,
            "identifiers": [[self._queue, item.op_id] for item in done],
            "digests": [item.digest for item in done],
        }
        tx.put(RECEIPTS, receipt)
        totals.live -= len(done)
        totals.done += len(done)
        totals.bytes -= sum(item.size for item in done)
        # Forget a few old receipts with each settlement: no sweep ever has to delete many at once.
        old = KeyRange([self._queue], [self._queue, self._now - RETENTION])
        expired = await tx.get_all(RECEIPTS, old, index=SETTLED, count=_TRIM)
        if expired:
            tx.delete_all(RECEIPTS, [[item["queue"], item["ordinal"]] for item in expired])


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
