"""One claim: what may be sent now, taken and written down as in flight, for one lane or several."""

from __future__ import annotations

from collections.abc import Sequence

from tabhelm.fencing.epochs import Grant, require_current
from tabhelm.fencing.schema import CLAIMS, DUE, PARTITIONS, READY
from tabhelm.ports import KeyRange, Transaction
from tabhelm.ports.database import Record
from tabhelm.queue.claims import Claim, Found, Wanted, give_back
from tabhelm.queue.partitions import ready
from tabhelm.queue.records import Operation
from tabhelm.queue.totals import Book, Totals
from tabhelm.queue.walk import LOOK, Walk


class Claiming:
    """One claim inside its transaction."""

    def __init__(self, tx: Transaction, book: Book, queue: str, grant: Grant, now: float, wanted: Wanted) -> None:
        self._tx = tx
        self._book = book
        self._queue = queue
        self._grant = grant
        self._now = now
        self._wanted = wanted

    async def run(self, first: int) -> Found:
        """Claim. ``first`` is the number of the first claim in this epoch."""
        tx, queue, now, wanted = self._tx, self._queue, self._now, self._wanted
        claims = tx.get_all(CLAIMS, KeyRange.prefix(queue))
        due = tx.get_all(PARTITIONS, KeyRange.prefix(queue), index=DUE, count=LOOK)
        hints = tx.get_all(PARTITIONS, KeyRange.prefix(queue), index=READY, count=LOOK)
        await require_current(tx, self._grant)
        totals = await self._book.totals()
        walk = Walk(tx, totals, queue, now, wanted)
        held, freed = await self._held(await claims)
        in_flight = {name for claim in held for name in claim["partitions"]}
        released = self._release(await due, walk)
        await walk.look(await hints, [*released, *freed], in_flight)
        tx.delete_all(PARTITIONS, [[queue, name] for name in walk.emptied])
        made = [
            Claim(f"{self._grant.epoch}.{first + at}", tuple(part), now, wanted.retention)
            for at, part in enumerate(self._parts(walk, totals, sum(len(claim["ordinals"]) for claim in held)))
        ]
        tx.put_all(CLAIMS, [self._record(claim) for claim in made])
        if not made and (walk.tired or len(released) == LOOK):
            walk.due = 0.0  # there may be more behind what was looked at
        return Found(tuple(made), tuple(walk.dead), walk.due, walk.after, bool(made) and walk.over)

    async def _held(self, claims: Sequence[Record]) -> tuple[list[Record], list[str]]:
        """The claims that are under way, and the partitions of those that are not, which are given back."""
        known = self._wanted.known
        lost = [] if known is None else [claim for claim in claims if claim["claim"] not in known]
        if not lost:
            return list(claims), []
        await give_back(self._tx, self._queue, lost, self._now)
        freed = [name for claim in lost for name in claim["partitions"]]
        return [claim for claim in claims if claim not in lost], freed

    def _parts(self, walk: Walk, totals: Totals, in_flight: int) -> list[list[Operation]]:
        """What was taken, spread over free lanes for which there is nothing else."""
        lines: dict[str, list[Operation]] = {}
        for operation in walk.claimed:
            lines.setdefault(operation.partition, []).append(operation)
        lanes = min(self._wanted.lanes, len(lines))
        if walk.over:
            left = totals.live - in_flight - len(walk.claimed)
            lanes -= min(self._wanted.lanes - 1, -(-left // self._wanted.limit))
        if lanes <= 1:
            return [walk.claimed] if walk.claimed else []
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

    def _release(self, records: Sequence[Record], walk: Walk) -> list[str]:
        """The partitions whose wait is over, which are ready from now on; the others say when to look again."""
        over: list[str] = []
        for record in records:
            if record["due"] <= self._now or self._now < record["since"]:
                over.append(record["partition"])
            else:
                walk.wait(record["due"])
        self._tx.put_all(PARTITIONS, [ready(self._queue, name) for name in over])
        return over
