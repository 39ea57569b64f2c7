"""Claims and settlements of one tenure, written down whatever the storage does.

While it is full, browsers refuse every transaction that writes anything; what only deletes goes through. So operations
are then sent without a claim and deleted once they are done; the rest is owed until there is room (``scarcity``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tabhelm.errors import QuotaExceeded
from tabhelm.observe import OperationDied
from tabhelm.queue.claims import Claim, Found, Wanted
from tabhelm.queue.delivery import Delivery
from tabhelm.queue.flush_run import POLL, FlushRun
from tabhelm.queue.records import Operation
from tabhelm.queue.scarcity import Scarcity
from tabhelm.queue.settling import Settlement
from tabhelm.queue.transports import Transport

_AT_ONCE = Found(due=0.0)


class Ledger:
    """All transactions of one flush run."""

    def __init__(self, run: FlushRun, delivery: Delivery) -> None:
        self._run = run
        self._delivery = delivery
        self._store = run.queue.store
        self._scarcity = Scarcity()
        self._held: set[str] = set()
        """The claims that were handed out and are not settled."""
        self._after = ""
        self.transport: Transport | None = None
        """What sends while the storage is full; ``None`` where the app's own loop does."""

    async def recover(self) -> None:
        """Before the first claim: return what was left in flight, by whomever."""
        run = self._run
        count, retention = await run.stored(lambda: self._store.recover(run.tenure.grant))
        run.retention = min(run.retention, retention)
        if count:
            run.changed()

    async def next(self) -> Claim:
        """The next claim, as soon as there is one."""
        while True:
            await self._run.rest()
            found = await self.turn((), 1)
            if found.claim is not None:
                return found.claim
            await self._run.wait(POLL if found.due is None else min(found.due, POLL))

    async def settle(self, settlement: Settlement) -> None:
        """Write down what became of a claim's operations."""
        await self.turn([settlement], 0)

    async def turn(self, settlements: Sequence[Settlement], lanes: int) -> Found:
        """Settle, and claim for so many lanes, in one transaction where it can be."""
        if self._scarcity.empty:
            try:
                found = await self._turn(settlements, lanes)
            except QuotaExceeded:
                pass
            else:
                self._told(settlements, found)
                return found
        for settlement in settlements:
            await self._settle_without_room(settlement)
        if not lanes:
            return Found()
        try:
            await self._pay()
            found = await self._turn((), lanes)
        except QuotaExceeded:
            await self._without_room()
            return _AT_ONCE
        self._told((), found)
        return found

    async def _turn(self, settlements: Sequence[Settlement], lanes: int, *, deleted: bool = False) -> Found:
        run, store, rejected = self._run, self._store, self._run.options.rejected
        # While paused, one operation shows as well as many whether it still is as it was.
        paused = run.queue.paused is not None
        wanted = Wanted(
            1 if paused else run.pace.size,
            run.retention,
            lanes=1 if paused else lanes,
            after=self._after,
            alone=dict(run.pace.alone),
            rejected=rejected,
            known=frozenset(self._held),
        )
        found = await run.stored(
            lambda: store.turn(
                run.tenure.grant, settlements, wanted if lanes else None, rejected=rejected, deleted=deleted
            ),
            full=True,
        )
        self._held.difference_update(each.claim.number for each in settlements if not each.left)
        self._held.update(claim.number for claim in found.claims)
        if lanes:
            self._after = found.after
        return found

    def _told(self, settlements: Iterable[Settlement], found: Found) -> None:
        self._report_dead(found.dead)
        if settlements or found.claims or found.dead:
            self._run.changed()

    def _report_dead(self, dead: Iterable[Operation]) -> None:
        queue = self._run.queue
        for operation in dead:
            queue.services.events.emit(OperationDied(queue.resource, operation.op_id, operation.reason))

    # -- while the storage is full ------------------------------------------------------------------------------------

    async def _settle_without_room(self, settlement: Settlement) -> None:
        try:
            if self._scarcity.owes(settlement.claim):
                raise QuotaExceeded("what was to be written of this claim before is not yet")
            found = await self._turn([settlement], 0)
        except QuotaExceeded:
            await self._delete(settlement.done)
            self._scarcity.owe(settlement)
            found = Found()
        self._told([settlement], found)

    async def _pay(self) -> None:
        """Write down what is owed.

        Raises:
            QuotaExceeded: there is no room yet.
        """
        scarcity, store, run = self._scarcity, self._store, self._run
        while scarcity.settlements:
            # It stays owed until it is written: what comes of the same claim meanwhile is added, not written before it.
            settlement = scarcity.settlements[0]
            found = await self._turn([settlement], 0, deleted=True)
            if scarcity.settlements[0] is settlement:
                scarcity.settlements.pop(0)
            self._report_dead(found.dead)
        if scarcity.unknown:
            noted = dict(scarcity.unknown)
            await run.stored(lambda: store.note_unknown(run.tenure.grant, noted.values()), full=True)
            scarcity.unknown = {key: found for key, found in scarcity.unknown.items() if key not in noted}
        if scarcity.sent:
            await run.stored(lambda: store.note_done(run.tenure.grant, scarcity.sent), full=True)
            scarcity.sent = []
            run.changed()

    async def _without_room(self) -> None:
        """Send what can be sent, and delete what is done: that alone makes room."""
        scarcity, store, run, transport = self._scarcity, self._store, self._run, self.transport
        clock, delivery = run.queue.services.clock, self._delivery
        run.queue.last_error = "quota-exceeded: the storage of this origin is full"
        done: list[Operation] = []
        if transport is not None:
            size = 1 if transport.each else run.pace.size
            skip, over = scarcity.waiting(clock.monotonic()), scarcity.over
            since = {op_id: at for op_id, (_, at) in scarcity.unknown.items()}
            operations = await run.stored(
                lambda: store.peek(run.tenure.grant, size, skip=skip, over=over, retention=run.retention, since=since)
            )
            if operations and await delivery.made_ready(transport, run.stream(0)):
                began = clock.wall()
                outcomes, _ = await delivery.send(operations, transport, run.tenure.stream("no-room"))
                scarcity.found(operations, outcomes, began)
                done = Settlement(Claim("", tuple(operations), 0.0), outcomes).done
                for item in operations:
                    if item.op_id in outcomes and item not in done:
                        scarcity.wait(item.partition, clock.monotonic() + run.options.max_delay)
        if done:
            await self._delete(done)
            scarcity.sent += done
        else:
            await run.storage_rest()

    async def _delete(self, done: Sequence[Operation]) -> None:
        store, run = self._store, self._run
        if done:
            await run.stored(lambda: store.delete_done(run.tenure.grant, done))
