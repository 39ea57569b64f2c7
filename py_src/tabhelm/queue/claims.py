"""Claims: what is in flight, what the next one may take, and what becomes of those that nobody will settle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tabhelm.fencing.epochs import Grant, require_current
from tabhelm.fencing.schema import CLAIMS, OPERATIONS, ORDER, PARTITIONS
from tabhelm.ports import KeyRange, Transaction
from tabhelm.ports.database import Record
from tabhelm.queue.options import Rejected
from tabhelm.queue.partitions import ready
from tabhelm.queue.records import Operation

CLAIM_SIZE = 1_000_000
"""Bytes of payload after which a claim is full: a request that takes long must not make its engine look dead."""
_MARGIN = 0.1
"""This part of the retention is not used up: requests take time, and two clocks run at two speeds."""


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


def oldest(now: float, retention: float) -> float:
    """An outcome that is unknown since before then stays unknown: the receiver may have forgotten the operation."""
    return now - retention * (1 - _MARGIN)


async def recover(tx: Transaction, queue: str, grant: Grant, now: float) -> int:
    """Return everything in flight to the queue, its outcome unknown since its claim; how many there were."""
    asked = tx.get_all(CLAIMS, KeyRange.prefix(queue))
    await require_current(tx, grant)
    return await give_back(tx, queue, await asked, now)


async def give_back(tx: Transaction, queue: str, claims: Sequence[Record], now: float) -> int:
    """Return what these claims took, its outcome unknown since then."""
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
