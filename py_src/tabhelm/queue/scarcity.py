"""Emptying a queue while nothing can be written: the storage is full.

Browsers then refuse every transaction that writes anything, also one that deletes more than it writes; what only
deletes goes through. So operations are sent without a claim and deleted once they are done; what else there is to write
down of them, receipts and totals, is owed until there is room. Whatever was not done stays as it is. If the engine dies
before, the next leader counts afresh, and what was sent without being deleted is sent again: receivers know its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tabhelm.queue.claims import Claim
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.settling import Settlement


class Scarcity:
    """What one flusher owes the database."""

    def __init__(self) -> None:
        self.settlements: list[Settlement] = []
        self.sent: list[Operation] = []
        """Done and deleted, though never claimed."""
        self.unknown: dict[str, tuple[Operation, float]] = {}
        """By id, what was sent without a claim, and since when (wall clock) its outcome is unknown."""
        self._waits: dict[str, float] = {}

    @property
    def empty(self) -> bool:
        return not (self.settlements or self.sent or self.unknown)

    def owes(self, claim: Claim) -> bool:
        """Whether something of this claim is still to be written down."""
        return any(settlement.claim.number == claim.number for settlement in self.settlements)

    def owe(self, settlement: Settlement) -> None:
        """Write this down when there is room."""
        for at, owed in enumerate(self.settlements):
            if owed.claim.number == settlement.claim.number:
                self.settlements[at] = owed.merged(settlement)
                return
        self.settlements.append(settlement)

    def found(self, operations: Sequence[Operation], outcomes: Mapping[str, Outcome], began: float) -> None:
        """What came of operations that were sent at ``began`` (wall clock) without a claim."""
        for item in operations:
            outcome = outcomes.get(item.op_id)
            if outcome is not None and outcome.status in ("unknown", "failed"):
                self.unknown.setdefault(item.op_id, (item, began))
            elif outcome is not None and outcome.status != "skipped":
                self.unknown.pop(item.op_id, None)

    @property
    def over(self) -> set[str]:
        """Claims of which nothing is on its way any more, though their records are still there."""
        return {settlement.claim.number for settlement in self.settlements if not settlement.left}

    def wait(self, partition: str, until: float) -> None:
        """Leave a partition alone until then (monotonic seconds)."""
        self._waits[partition] = until

    def waiting(self, now: float) -> set[str]:
        """Partitions to leave alone: those that failed a moment ago, and those of which more is owed than deletions."""
        self._waits = {name: until for name, until in self._waits.items() if until > now}
        owed = {
            item.partition
            for settlement in self.settlements
            for item in settlement.claim.operations
            if not settlement.is_done(item)
        }
        return owed | self._waits.keys()
