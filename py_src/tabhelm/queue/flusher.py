"""Empty a queue under leadership: recover, then claim, send, settle, for as long as the tenure stands.

A crash after the claim returns the operations under the next epoch; a stale leader can neither claim nor settle (the
transactions check the epoch) nor write (the receiver checks the token). Failures of the endpoint make the whole queue
wait; a single operation that fails makes its own partition wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from tabhelm.errors import DatabaseClosed, DatabaseError, InvalidOptions, LeadershipLost, QuotaExceeded, WrongResource
from tabhelm.leadership import LeaderContext
from tabhelm.leadership.tenure import TokenStream
from tabhelm.observe import OperationDied, QueuePaused
from tabhelm.queue.carriers import Carrier, HttpCarrier, OwnCarrier, Sent
from tabhelm.queue.claiming import Claim
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.pace import Pace
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.scarcity import Scarcity, Settlement
from tabhelm.queue.sending import as_sender
from tabhelm.queue.shared import SharedQueue
from tabhelm.queue.store import RETENTION

T = TypeVar("T")
POLL = 30.0
"""Seconds after which an idle flusher looks by itself, in case a nudge was lost, and a paused one tries again."""


class Batch:
    """Claimed operations of one lane, in order. Send them, or settle them yourself: those that ``settle`` is given no
    outcome for go back as they were. A batch that was left open counts as sent with an unknown outcome."""

    def __init__(self, flusher: Flusher, claim: Claim) -> None:
        self._flusher = flusher
        self._claim = claim
        self.operations = claim.operations
        self.settled = False

    async def send(self, endpoint: str, *, timeout: float | None = None) -> None:
        """POST the batch to a fenced receiver and settle by its answer. ``timeout`` in seconds.

        Whatever the network or the server does is settled, not raised: operations are committed, dead or queued again.

        Raises:
            LeadershipLost: the tenure ended; the next leader takes care of the operations.
        """
        await self._flusher.deliver(self._claim, self._flusher.http(endpoint, timeout), self._flusher.stream(0))
        self.settled = True

    async def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Write down what became of the operations.

        Raises:
            LeadershipLost: the tenure ended; the next leader takes care of the operations.
        """
        found = {outcome.op_id: outcome for outcome in outcomes}
        await self._flusher.settle(self._claim, *self._flusher.pace.judged(self.operations, found))
        self.settled = True


async def batches(
    queue: SharedQueue, context: LeaderContext, options: QueueOptions | None = None
) -> AsyncIterator[Batch]:
    """Batches of operations, as they become due; waits when there are none. Ends only by an error.

    One at a time in a tenure: a second one takes over what the first has in flight.

    Raises:
        LeadershipLost: the tenure ended.
        WrongResource: the tenure is of another resource.
    """
    flusher = Flusher(queue, context, options or QueueOptions())
    batch: Batch | None = None
    try:
        await flusher.recover()
        while True:
            batch = Batch(flusher, await flusher.next())
            yield batch
            await flusher.abandon(batch)
    finally:
        flusher.close()
        if batch is not None:
            with suppress(LeadershipLost):  # then the next leader recovers it
                await flusher.abandon(batch)


async def flush(queue: SharedQueue, context: LeaderContext, options: QueueOptions) -> None:
    """The built-in leader loop: send everything by the options' sender, or to their endpoint.

    Raises:
        LeadershipLost: the tenure ended.
        WrongResource: the tenure is of another resource.
        InvalidOptions: neither a sender nor an endpoint.
    """
    flusher = Flusher(queue, context, options)
    if options.sender is not None:
        carrier: Carrier = OwnCarrier(queue.services, context, as_sender(options.sender), options)
    elif options.endpoint is not None:
        carrier = HttpCarrier(queue.services, context, options.endpoint, options)
    else:
        raise InvalidOptions(f"queue {queue.resource!r} has neither an endpoint nor a sender: name one to flush it")
    try:
        await flusher.run(carrier)
    finally:
        flusher.close()


class Flusher:
    """One tenure's sending: one pace, and a token stream for each lane."""

    def __init__(self, queue: SharedQueue, context: LeaderContext, options: QueueOptions) -> None:
        if context.resource != queue.resource:
            # Two resources have two leaders: both would claim, and neither's epoch says anything of the other's.
            raise WrongResource(
                f"queue {queue.resource!r} is flushed by its own leader, not by that of {context.resource!r}: "
                "give the loop to tab.queue(name, loop=...)"
            )
        self._queue = queue
        self._context = context
        self._options = options
        self.pace = Pace(queue.services.clock, queue.services.entropy, options)
        self._scarcity = Scarcity()
        self._carrier: Carrier | None = None
        """What sends while the storage is full; ``None`` where the app's own loop does."""
        self._carriers: dict[tuple[str, float | None], Carrier] = {}
        self._retention = RETENTION
        self._after = ""
        self._wake = asyncio.Event()
        self._unsubscribe = queue.subscribe(self._wake.set)
        context.tenure.on_revoked(self._wake.set)
        queue.unpause()  # another tab, another session, another day: ask afresh

    def close(self) -> None:
        self._unsubscribe()

    def http(self, endpoint: str, timeout: float | None) -> Carrier:
        """The way to a fenced receiver, whose marks are raised once in a tenure."""
        options = self._options
        if (endpoint, timeout) not in self._carriers:
            if timeout is not None:
                options = QueueOptions(send_timeout=timeout, headers=options.headers)
            self._carriers[endpoint, timeout] = HttpCarrier(self._queue.services, self._context, endpoint, options)
        return self._carriers[endpoint, timeout]

    def stream(self, lane: int) -> TokenStream:
        return self._context.tenure.stream(f"lane-{lane}")

    # -- all lanes ----------------------------------------------------------------------------------------------------

    async def run(self, carrier: Carrier) -> None:
        """Recover, then keep up to ``lanes`` batches on their way."""
        while not await self._made_ready(carrier, self.stream(0)):
            await self.rest()
        await self.recover()
        self._carrier = carrier
        if self._options.lanes == 1:
            while True:
                await self.deliver(await self.next(), carrier, self.stream(0))
        free = list(range(self._options.lanes))
        running: dict[asyncio.Task[None], int] = {}

        def ended(task: asyncio.Task[None]) -> None:
            free.append(running.pop(task))
            if not task.cancelled() and (error := task.exception()) is not None:
                failures.append(error)
            self._wake.set()

        failures: list[BaseException] = []
        try:
            while True:
                while not free and not failures:
                    await self._woken()
                if failures:
                    raise failures[0]
                claim = await self._next(lambda: bool(failures))
                if claim is None:
                    continue
                lane = free.pop(0)
                task = asyncio.get_running_loop().create_task(self.deliver(claim, carrier, self.stream(lane)))
                running[task] = lane
                task.add_done_callback(ended)
        finally:
            left = list(running)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    # -- claiming -----------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Before the first claim: return what was left in flight, by whomever."""
        store, tenure = self._queue.store, self._context.tenure
        count, retention = await self._stored(lambda: store.recover(tenure.grant))
        self._retention = min(self._retention, retention)
        if count:
            self._queue.changed()

    async def next(self) -> Claim:
        """The next claim, as soon as there is one."""
        while (claim := await self._next(lambda: False)) is None:
            pass
        return claim

    async def _next(self, stop: Callable[[], bool]) -> Claim | None:
        store, tenure = self._queue.store, self._context.tenure
        while not stop():
            await self.rest()
            self._wake.clear()
            # While paused, one operation shows as well as many whether it still is as it was.
            size = self.pace.size if self._queue.paused is None else 1
            try:
                await self._pay()
                found = await self._stored(
                    lambda size=size: store.claim(  # type: ignore[misc]
                        tenure.grant,
                        size,
                        after=self._after,
                        alone=self.pace.alone,
                        retention=self._retention,
                        rejected=self._options.rejected,
                    ),
                    full=True,
                )
            except QuotaExceeded:
                await self._without_room()
                continue
            self._after = found.after
            self._report_dead(found.dead)
            if found.claim is not None:
                self._queue.changed()
                self._wake.clear()
                return found.claim
            await self._wait(POLL if found.due is None else min(found.due, POLL))
        return None

    async def rest(self) -> None:
        """Keep the pause that the endpoint asked for; while the queue is paused, wait until it is resumed or ``POLL``
        is over."""
        while (pause := self.pace.pause) > 0:
            await self._context.sleep(pause)
        self._context.tenure.ensure()
        until = self._queue.services.clock.monotonic() + POLL
        while self._queue.paused is not None and (left := until - self._queue.services.clock.monotonic()) > 0:
            await self._wait(left)

    async def _wait(self, seconds: float) -> None:
        timer = self._queue.services.clock.call_later(seconds, self._wake.set)
        try:
            await self._woken()
        finally:
            timer.cancel()

    async def _woken(self) -> None:
        await self._wake.wait()
        self._wake.clear()
        self._context.tenure.ensure()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _made_ready(self, carrier: Carrier, stream: TokenStream) -> bool:
        """The barrier, where there is one; false (and a pause) if it does not stand yet."""
        sent = await carrier.ready(stream)
        if sent is None:
            return True
        if sent.kind != "answered":
            self._not_sent(sent)
            return False
        await self._reached(sent)
        return True

    async def deliver(self, claim: Claim, carrier: Carrier, stream: TokenStream) -> None:
        """Send a claim and settle it."""
        known = self._retention
        if not await self._made_ready(carrier, stream) or (
            self._retention < known and any(item.unknown_since for item in claim.operations)
        ):
            await self.settle(claim, {}, {})  # the next claim knows how long the receiver remembers
        elif carrier.each:
            await self._deliver_each(claim, carrier, stream)
        else:
            await self.settle(claim, *await self._send(claim.operations, carrier, stream))

    async def _deliver_each(self, claim: Claim, carrier: Carrier, stream: TokenStream) -> None:
        """One by one, each settled before the next is sent: a crash leaves one unknown, not all."""
        stopped: set[str] = set()
        left = list(claim.operations)
        while left:
            operation = left.pop(0)
            outcomes, delays = await self._send([operation], carrier, stream)
            if operation.op_id not in outcomes or not outcomes[operation.op_id].goes_on(self._options.rejected):
                stopped.add(operation.partition)
            left = [item for item in left if item.partition not in stopped]
            if self.pace.pause > 0 or self._queue.paused is not None:
                left = []
            await self.settle(claim, outcomes, delays, left)

    async def _send(
        self, operations: Sequence[Operation], carrier: Carrier, stream: TokenStream
    ) -> tuple[dict[str, Outcome], dict[str, float]]:
        """Send, and find what to write down of each operation: those without outcome go back as they were."""
        sent = await carrier.carry(operations, stream)
        if sent.kind == "answered":
            await self._reached(sent)
            self.pace.answered(operations)
            return self.pace.judged(operations, dict(sent.outcomes))
        if sent.kind == "unfit" and len(operations) == 1:
            only = operations[0].op_id
            return {only: Outcome(only, "rejected", sent.detail)}, {}
        if sent.kind == "unfit":
            self.pace.size = max(1, len(operations) // 2)
            return {}, {}
        if sent.kind in ("busy", "denied"):
            self._not_sent(sent)
            return {}, {}
        self._queue.last_error = sent.detail
        return self.pace.failed(operations, sent)

    async def _reached(self, sent: Sent) -> None:
        """The receiver answers: forget its failures, and learn how long it remembers operation ids."""
        self.pace.reached()
        self._queue.last_error = None
        if self._queue.paused is not None:
            self._queue.unpause()
        if sent.retention is not None and sent.retention < self._retention:
            self._retention = sent.retention
            with suppress(QuotaExceeded):  # the next tenure asks anew
                await self._stored(partial(self._queue.store.note_retention, sent.retention), full=True)

    def _not_sent(self, sent: Sent) -> None:
        """Pause where only a person can help, else wait."""
        if sent.kind == "denied":
            if self._queue.paused != sent.detail:
                self._queue.services.events.emit(QueuePaused(self._queue.resource, sent.detail))
            self._queue.pause(sent.detail)
            return
        if sent.kind == "busy" or sent.silent or sent.kind == "unknown":
            self.pace.not_reached(sent)
        self._queue.last_error = sent.detail

    # -- settling -----------------------------------------------------------------------------------------------------

    async def abandon(self, batch: Batch) -> None:
        """Settle a batch that nobody did: it may have been sent, by whatever means."""
        if not batch.settled:
            batch.settled = True
            self.pace.wait(self._options.base_delay)
            detail = "neither sent nor settled"
            unknown = {item.op_id: Outcome(item.op_id, "unknown", detail) for item in batch.operations}
            await self.settle(batch._claim, unknown, {})

    async def settle(
        self,
        claim: Claim,
        outcomes: Mapping[str, Outcome],
        delays: Mapping[str, float],
        left: Sequence[Operation] = (),
    ) -> None:
        settlement = Settlement(claim, outcomes, delays, left)
        try:
            if self._scarcity.owes(claim):
                raise QuotaExceeded("what was to be written of this claim before is not yet")
            await self._settle(settlement, deleted=False)
        except QuotaExceeded:
            await self._delete(settlement.done)
            self._scarcity.owe(settlement)
        self._queue.committed(len(settlement.done))
        self._queue.changed()

    async def _settle(self, settlement: Settlement, *, deleted: bool) -> None:
        store, tenure, rejected = self._queue.store, self._context.tenure, self._options.rejected
        claim, outcomes, delays, left = settlement.claim, settlement.outcomes, settlement.delays, settlement.left
        dead = await self._stored(
            lambda: store.settle(tenure.grant, claim, outcomes, delays, left=left, rejected=rejected, deleted=deleted),
            full=True,
        )
        self._report_dead(dead)

    # -- while the storage is full ------------------------------------------------------------------------------------

    async def _pay(self) -> None:
        """Write down what is owed.

        Raises:
            QuotaExceeded: there is no room yet.
        """
        scarcity, store, tenure = self._scarcity, self._queue.store, self._context.tenure
        while scarcity.settlements:
            settlement = scarcity.settlements.pop(0)
            try:
                await self._settle(settlement, deleted=True)
            except BaseException:
                scarcity.owe(settlement)
                raise
        if scarcity.sent:
            await self._stored(lambda: store.note_done(tenure.grant, scarcity.sent), full=True)
            scarcity.sent = []
            self._queue.changed()

    async def _without_room(self) -> None:
        """Send what can be sent, and delete what is done: that alone makes room."""
        scarcity, store, tenure = self._scarcity, self._queue.store, self._context.tenure
        clock, carrier = self._queue.services.clock, self._carrier
        self._queue.last_error = "quota-exceeded: the storage of this origin is full"
        done: list[Operation] = []
        if carrier is not None:
            size = 1 if carrier.each else self.pace.size
            skip, over = scarcity.waiting(clock.monotonic()), scarcity.over
            operations = await self._stored(
                lambda: store.peek(tenure.grant, size, skip=skip, over=over, retention=self._retention)
            )
            if operations and await self._made_ready(carrier, self.stream(0)):
                outcomes, _ = await self._send(operations, carrier, tenure.stream("no-room"))
                done = Settlement(Claim("", tuple(operations), 0.0), outcomes, {}).done
                for item in operations:
                    if item not in done:
                        scarcity.wait(item.partition, clock.monotonic() + self._options.max_delay)
        if done:
            await self._delete(done)
            scarcity.sent += done
            self._queue.committed(len(done))
        else:
            await self._context.sleep(self.pace.storage_failed())

    async def _delete(self, done: Sequence[Operation]) -> None:
        store, tenure = self._queue.store, self._context.tenure
        if done:
            await self._stored(lambda: store.delete_done(tenure.grant, done))

    def _report_dead(self, dead: Sequence[Operation]) -> None:
        for operation in dead:
            self._queue.services.events.emit(OperationDied(self._queue.resource, operation.op_id, operation.reason))
        if dead:
            self._queue.changed()

    async def _stored(self, transaction: Callable[[], Awaitable[T]], *, full: bool = False) -> T:
        """Repeat a transaction until storage lets it through, or the tenure ends.

        Raises:
            QuotaExceeded: with ``full``, at once.
        """
        while True:
            self._context.tenure.ensure()
            try:
                return await transaction()
            except DatabaseClosed:
                continue  # closed under us: the next one opens anew, and sees whether our epoch is still there
            except DatabaseError as failure:
                if full and isinstance(failure, QuotaExceeded):
                    raise
                self._queue.last_error = f"{failure.code}: {failure}"
                await self._context.sleep(self.pace.storage_failed())
