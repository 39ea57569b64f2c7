"""Emptying a queue while nothing can be written: the storage is full.

Browsers then refuse every transaction that writes anything, also one that deletes more than it writes; what only
deletes goes through. So operations are sent without a claim and deleted once they are done; what else there is to write
down of them, receipts and totals, is owed until there is room. Whatever was not done stays as it is. If the engine dies
before, the next leader counts afresh, and what was sent without being deleted is sent again: receivers know its id.
"""

from __future__ import annotations

from tabhelm.queue.claims import Claim
from tabhelm.queue.records import Operation
from tabhelm.queue.settling import Settlement


class Scarcity:
    """What one flusher owes the database."""

    def __init__(self) -> None:
        self.settlements: list[Settlement] = []
        self.sent: list[Operation] = []
        """Done and deleted, though never claimed."""
        self._waits: dict[str, float] = {}

    @property
    def empty(self) -> bool:
        return not (self.settlements or self.sent)

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
