"""What a leader does with its queue: every transaction checks the epoch, whatever else is in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tabhelm.fencing.epochs import Grant, require_current
from tabhelm.fencing.schema import (
    CLAIMS,
    COUNTERS,
    DEAD_LETTERS,
    FENCING,
    OPERATIONS,
    ORDER,
    PARTITIONS,
    RECEIPTS,
)
from tabhelm.ports import Clock, Database, Entropy, KeyRange, Transaction
from tabhelm.queue.claiming import Claiming
from tabhelm.queue.claims import CLAIM_SIZE, Found, Wanted, oldest, recover
from tabhelm.queue.counted import CountedStore
from tabhelm.queue.options import Rejected
from tabhelm.queue.records import Operation
from tabhelm.queue.settling import RETENTION, Receipts, Settlement, Settling
from tabhelm.queue.totals import COUNTED, Book

_LED = (FENCING, OPERATIONS, PARTITIONS, CLAIMS, DEAD_LETTERS, COUNTERS)
_PAGE = 100


class LedStore(CountedStore):
    """The leader's transactions on one queue."""

    def __init__(self, database: Database, clock: Clock, entropy: Entropy, resource: str) -> None:
        super().__init__(database, clock, entropy, resource)
        self._claims = 0

    async def recover(self, grant: Grant) -> tuple[int, float]:
        """Return everything in flight to the queue, its outcome unknown: how many there were, and how long the receiver
        remembers operation ids (seconds).

        To be called before ``grant``'s holder claims: whatever is in flight then was left by somebody who is no more.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction, book: Book) -> tuple[int, float]:
            count = await recover(tx, self.resource, grant, self._clock.wall())
            if await book.recount():
                await book.write()
            retention = (await book.totals()).retention
            return count, RETENTION if retention is None else retention

        return await self._counted(_LED, "readwrite", body)

    async def note_retention(self, seconds: float) -> None:
        """Remember that the receiver forgets operation ids after so many seconds. The least that it ever said counts:
        what it had forgotten once, it does not know again."""

        async def body(tx: Transaction, book: Book) -> None:
            totals = await book.totals()
            if seconds < (RETENTION if totals.retention is None else totals.retention):
                totals.retention = seconds
                await book.write()

        await self._counted(COUNTED, "readwrite", body)

    async def turn(
        self,
        grant: Grant,
        settlements: Sequence[Settlement],
        wanted: Wanted | None,
        *,
        rejected: Rejected = "dead",
        deleted: bool = False,
    ) -> Found:
        """Write down what became of claimed operations, and claim what is to be sent next: in one transaction.

        Of a claim that somebody took over meanwhile nothing is written: whoever did decides. ``deleted`` says that
        ``delete_done`` was here before.

        Raises:
            LeadershipLost: ``grant`` is not the newest; its successor decides about these operations.
        """
        first = self._claims + 1
        if wanted is not None:
            self._claims += wanted.lanes

        async def body(tx: Transaction, book: Book) -> Found:
            now, found, counted = self._clock.wall(), Found(), False
            settling = [Settling(tx, self.resource, each, now, rejected, deleted=deleted) for each in settlements]
            if settling:
                await require_current(tx, grant)
            for each in settling:
                died, changed = await each.run(await book.totals())
                found = found._replace(dead=(*found.dead, *died))
                counted = counted or changed
            if wanted is not None:
                claimed = await Claiming(tx, book, self.resource, grant, now, wanted).run(first)
                counted = counted or bool(claimed.dead)
                found = claimed._replace(dead=(*found.dead, *claimed.dead))
            if counted:
                await book.write()
            return found

        stores = [*_LED, RECEIPTS] if settlements else _LED
        return await self._counted(stores, "readwrite", body)

    # -- while the storage is full ------------------------------------------------------------------------------------

    async def peek(
        self,
        grant: Grant,
        limit: int,
        *,
        skip: Collection[str],
        over: Collection[str],
        retention: float = RETENTION,
        since: Mapping[str, float] | None = None,
    ) -> list[Operation]:
        """Up to ``limit`` operations that may be sent now, oldest first, without claiming them: writes nothing.

        None of the partitions ``skip``, nor of one that is in flight under another claim than those that are ``over``.
        ``since`` says since when (wall clock) the outcome of an operation is unknown where that is not written down.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction) -> list[Operation]:
            claims = tx.get_all(CLAIMS, KeyRange.prefix(self.resource))
            await require_current(tx, grant)
            held = {name for claim in await claims if claim["claim"] not in over for name in claim["partitions"]}
            barred = {*skip, *held}
            found: list[Operation] = []
            now, room, after = self._clock.wall(), CLAIM_SIZE, 0
            while len(found) < limit:
                keys = KeyRange([self.resource, after], [self.resource, []], lower_open=True)
                page = [
                    Operation.from_record(each) for each in await tx.get_all(OPERATIONS, keys, index=ORDER, count=_PAGE)
                ]
                for item in page:
                    waits = item.not_before > now >= item.delayed_at
                    unknown = item.unknown_since or (since or {}).get(item.op_id)
                    stale = unknown and unknown < oldest(now, retention)
                    if item.partition in barred or item.blocks or waits or stale or (found and item.size > room):
                        barred.add(item.partition)
                    elif len(found) < limit:
                        found.append(item)
                        room -= item.size
                if len(page) < _PAGE:
                    break
                after = page[-1].ordinal
            return found

        return await self._database.transaction([FENCING, OPERATIONS, CLAIMS], "readonly", body)

    async def delete_done(self, grant: Grant, done: Sequence[Operation]) -> None:
        """Delete operations that are done, and write nothing down: ``settle`` or ``note_done`` will.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction) -> None:
            await require_current(tx, grant)
            await tx.delete_all(OPERATIONS, [item.place for item in done])

        await self._database.transaction([FENCING, OPERATIONS], "readwrite", body)

    async def note_unknown(self, grant: Grant, sent: Iterable[tuple[Operation, float]]) -> None:
        """Write down of operations that were sent without a claim since when (wall clock) their outcome is unknown.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """
        noted = list(sent)

        async def body(tx: Transaction) -> None:
            records = [tx.get(OPERATIONS, item.place) for item, _ in noted]
            await require_current(tx, grant)
            for (item, at), asked in zip(noted, records, strict=True):
                record = await asked
                if record is not None and record["op_id"] == item.op_id and not record.get("unknown_since"):
                    tx.put(OPERATIONS, record | {"unknown_since": at})

        await self._database.transaction([FENCING, OPERATIONS], "readwrite", body)

    async def note_done(self, grant: Grant, done: Sequence[Operation]) -> None:
        """Write down what ``delete_done`` did of operations that were never claimed. Once: it may be called again by
        who does not know whether it was written.

        Raises:
            LeadershipLost: ``grant`` is not the newest.
        """

        async def body(tx: Transaction, book: Book) -> None:
            noted = tx.get(RECEIPTS, [self.resource, done[0].ordinal])
            receipts = Receipts(tx, self.resource, self._clock.wall())
            await require_current(tx, grant)
            if await noted is not None:
                return
            tx.delete_all(OPERATIONS, [item.place for item in done])
            await receipts.write(await book.totals(), done)
            await book.write()

        await self._counted([*_LED, RECEIPTS], "readwrite", body)
