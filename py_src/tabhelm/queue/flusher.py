"""Empty a queue under leadership: recover, then claim, send, settle, for as long as the tenure stands.

A crash after the claim returns the operations under the next epoch; a stale leader can neither claim nor settle (the
transactions check the epoch) nor write (the receiver checks the token). Failures of the endpoint make the whole queue
wait; a single operation that fails makes its own partition wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from tabhelm.election import Backoff
from tabhelm.errors import DatabaseClosed, DatabaseError, LeadershipLost, WrongResource
from tabhelm.fencing.reply import Reply
from tabhelm.leadership import LeaderContext
from tabhelm.leadership.barrier import try_barrier, write
from tabhelm.observe import OperationDied, QueuePaused
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.sender import SEND_TIMEOUT, read_outcomes, request_body
from tabhelm.queue.shared import SharedQueue

T = TypeVar("T")
BATCH = 100
LANE = "lane-0"
POLL = 30.0
"""Seconds after which an idle flusher looks by itself, in case a nudge was lost, and a paused one tries again."""
BASE_DELAY = 0.5
MAX_DELAY = 60.0
MAX_ATTEMPTS = 20
"""After so many ``retry`` answers an operation is a dead letter."""


class Batch:
    """Claimed operations of one lane, in order. Send them, or settle them yourself: those that ``settle`` is given no
    outcome for go back as they were. A batch that was left open counts as sent with an unknown outcome."""

    def __init__(self, lane: _Lane, operations: Sequence[Operation]) -> None:
        self._lane = lane
        self.operations = tuple(operations)
        self.settled = False

    async def send(self, endpoint: str, *, timeout: float = SEND_TIMEOUT) -> None:
        """POST the batch to a fenced receiver and settle by its answer. ``timeout`` in seconds.

        Whatever the network or the server does is settled, not raised: operations are committed, dead or queued again.

        Raises:
            LeadershipLost: the tenure ended; the next leader takes care of the operations.
        """
        await self._lane.deliver(self, endpoint, timeout)

    async def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Write down what became of the operations.

        Raises:
            LeadershipLost: the tenure ended; the next leader takes care of the operations.
        """
        await self._lane.settle(self, {outcome.op_id: outcome for outcome in outcomes})


async def batches(queue: SharedQueue, context: LeaderContext, *, limit: int = BATCH) -> AsyncIterator[Batch]:
    """Batches of at most ``limit`` operations, as they become due; waits when there are none. Ends only by an error.

    One at a time in a tenure: a second one takes over what the first has in flight.

    Raises:
        LeadershipLost: the tenure ended.
        WrongResource: the tenure is of another resource.
    """
    lane = _Lane(queue, context, limit)
    batch: Batch | None = None
    try:
        await lane.recover()
        while True:
            batch = await lane.next()
            yield batch
            await lane.abandon(batch)
    finally:
        lane.close()
        if batch is not None:
            with suppress(LeadershipLost):  # then the next leader recovers it
                await lane.abandon(batch)


async def flush(
    queue: SharedQueue, context: LeaderContext, endpoint: str, *, limit: int = BATCH, timeout: float = SEND_TIMEOUT
) -> None:
    """The built-in leader loop: raise the receiver's marks, then send batch after batch to ``endpoint``.

    Raises:
        LeadershipLost: the tenure ended.
        WrongResource: the tenure is of another resource.
    """
    lane = _Lane(queue, context, limit)
    try:
        while not await lane.raise_marks(endpoint):
            await lane.rest()
        await lane.recover()
        while True:
            batch = await lane.next()
            await batch.send(endpoint, timeout=timeout)
    finally:
        lane.close()


class _Lane:
    """One order of claims and writes: one token stream, one pace."""

    def __init__(self, queue: SharedQueue, context: LeaderContext, limit: int) -> None:
        if context.resource != queue.resource:
            # Two resources have two leaders: both would claim, and neither's epoch says anything of the other's.
            raise WrongResource(
                f"queue {queue.resource!r} is flushed by its own leader, not by that of {context.resource!r}: "
                "give the loop to tab.queue(name, loop=...)"
            )
        self._queue = queue
        self._context = context
        self._limit = limit
        self._size = limit
        self._stream = context.tenure.stream(LANE)
        self._raised: set[str] = set()
        self._backoff = Backoff(queue.services.entropy, BASE_DELAY, MAX_DELAY)
        self._pause = 0.0
        self._retention = math.inf
        self._wake = asyncio.Event()
        self._unsubscribe = queue.subscribe(self._wake.set)
        context.tenure.on_revoked(self._wake.set)
        queue.unpause()  # another tab, another session, another day: ask afresh

    def close(self) -> None:
        self._unsubscribe()

    # -- claiming -----------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Before the first claim: return what was left in flight, by whomever."""
        store, tenure = self._queue.store, self._context.tenure
        if await self._stored(partial(store.recover, tenure.grant)):
            self._queue.changed()

    async def next(self) -> Batch:
        store, tenure = self._queue.store, self._context.tenure
        while True:
            await self.rest()
            self._wake.clear()
            # While paused, one operation shows as well as many whether it still is as it was.
            size = self._size if self._queue.paused is None else 1
            claimed, dead, due = await self._stored(partial(store.claim, tenure.grant, size))
            self._report_dead(dead)
            if claimed:
                self._queue.changed()
                self._wake.clear()
                return Batch(self, claimed)
            await self._wait(POLL if due is None else min(due, POLL))

    async def rest(self) -> None:
        """Keep the pause that the endpoint asked for; while the queue is paused, wait until it is resumed or ``POLL``
        is over."""
        pause, self._pause = self._pause, 0.0
        if pause > 0:
            await self._context.sleep(pause)
        self._context.tenure.ensure()
        until = self._queue.services.clock.monotonic() + POLL
        while self._queue.paused is not None and (left := until - self._queue.services.clock.monotonic()) > 0:
            await self._wait(left)

    async def _wait(self, seconds: float) -> None:
        timer = self._queue.services.clock.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        self._wake.clear()
        self._context.tenure.ensure()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def raise_marks(self, endpoint: str) -> bool:
        """The barrier, once for each endpoint and tenure; false (and a pause) if it does not stand yet."""
        if endpoint in self._raised:
            return True
        services = self._queue.services
        reply = await try_barrier(services.http, endpoint, self._context.tenure, self._stream, services.events)
        if reply.kind != "answered":
            self._not_answered(reply)
            return False
        await self._answered(reply)
        self._raised.add(endpoint)
        return True

    async def deliver(self, batch: Batch, endpoint: str, timeout: float) -> None:
        known = self._retention
        if not await self.raise_marks(endpoint) or (
            self._retention < known and any(item.unknown_since for item in batch.operations)
        ):
            await self.settle(batch, {})  # the next claim knows how long the receiver remembers
            return
        services, operations = self._queue.services, batch.operations
        reply = await write(
            services.http,
            endpoint,
            self._context.tenure,
            self._stream,
            services.events,
            request_body(operations),
            len(operations),
            timeout=timeout,
        )
        outcomes = read_outcomes(reply.results, operations) if reply.kind == "answered" else None
        if outcomes is not None:
            await self._answered(reply)
            self._size = min(self._limit, self._size * 2)
            await self.settle(batch, outcomes)
        elif reply.kind == "unfit" and len(operations) == 1:
            only = operations[0].op_id
            await self.settle(batch, {only: Outcome(only, "rejected", reply.detail)})
        elif reply.kind == "denied":
            self._not_answered(reply)
            await self.settle(batch, {})
        else:
            # Smaller batches after each failure: one operation that the receiver chokes on must not stop the others.
            self._size = max(1, len(operations) // 2)
            if reply.kind == "answered":
                reply = Reply("unknown", "the results are not those of the operations sent")
            if reply.kind != "unfit":
                self._not_answered(reply)
            await self.settle(batch, _unknown(operations, reply.detail) if reply.kind == "unknown" else {})

    async def _answered(self, reply: Reply) -> None:
        """The receiver answers: forget its failures, and learn how long it remembers operation ids."""
        self._backoff.reset()
        self._queue.last_error = None
        if self._queue.paused is not None:
            self._queue.unpause()
        if reply.retention is not None and reply.retention < self._retention:
            self._retention = reply.retention
            await self._stored(partial(self._queue.store.note_retention, reply.retention))

    def _not_answered(self, reply: Reply) -> None:
        """Pause where only a person can help, else wait."""
        if reply.kind == "denied":
            if self._queue.paused != reply.detail:
                self._queue.services.events.emit(QueuePaused(self._queue.resource, reply.detail))
            self._queue.pause(reply.detail)
            return
        self._pause = max(self._backoff.next(), reply.retry_after or 0.0)
        self._queue.last_error = reply.detail

    # -- settling -----------------------------------------------------------------------------------------------------

    async def abandon(self, batch: Batch) -> None:
        """Settle a batch that nobody did: it may have been sent, by whatever means."""
        if not batch.settled:
            self._pause = max(self._pause, BASE_DELAY)
            await self.settle(batch, _unknown(batch.operations, "neither sent nor settled"))

    async def settle(self, batch: Batch, outcomes: Mapping[str, Outcome]) -> None:
        delays: dict[str, float] = {}
        final: dict[str, Outcome] = {}
        for operation in batch.operations:
            outcome = outcomes.get(operation.op_id)
            if outcome is None:
                continue
            if outcome.status == "retry" and operation.attempts + 1 >= MAX_ATTEMPTS:
                outcome = Outcome(
                    operation.op_id, "rejected", f"gave up after {MAX_ATTEMPTS} attempts: {outcome.detail}"
                )
            final[operation.op_id] = outcome
            if outcome.status == "retry":
                delays[operation.op_id] = self._delay(operation, outcome)
            elif outcome.status == "unknown" and len(batch.operations) == 1:
                delays[operation.op_id] = self._pause * 2  # alone and still failing: let the other partitions go first
        store, tenure = self._queue.store, self._context.tenure
        dead = await self._stored(partial(store.settle, tenure.grant, batch.operations, final, delays))
        batch.settled = True
        self._report_dead(dead)
        self._queue.changed()

    def _delay(self, operation: Operation, outcome: Outcome) -> float:
        full = min(MAX_DELAY, BASE_DELAY * 2.0**operation.attempts)
        return max(self._queue.services.entropy.uniform(full / 2, full), outcome.retry_after or 0.0)

    def _report_dead(self, dead: Sequence[Operation]) -> None:
        for operation in dead:
            self._queue.services.events.emit(OperationDied(self._queue.resource, operation.op_id, operation.reason))
        if dead:
            self._queue.changed()

    async def _stored(self, transaction: Callable[[], Awaitable[T]]) -> T:
        """Repeat a transaction until storage lets it through, or the tenure ends."""
        while True:
            self._context.tenure.ensure()
            try:
                return await transaction()
            except DatabaseClosed:
                continue  # closed under us: the next one opens anew, and sees whether our epoch is still there
            except DatabaseError as failure:
                self._queue.last_error = f"{failure.code}: {failure}"
                await self._context.sleep(self._backoff.next())


def _unknown(operations: Sequence[Operation], detail: str) -> dict[str, Outcome]:
    return {item.op_id: Outcome(item.op_id, "unknown", detail) for item in operations}
