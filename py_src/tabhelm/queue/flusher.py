"""Empty a queue under leadership: recover, then claim, send, settle, for as long as the tenure stands.

A crash after the claim returns the operations under the next epoch; a stale leader can neither claim nor settle (the
transactions check the epoch) nor write (the receiver checks the token). Failures of the endpoint make the whole queue
wait; a single operation that fails makes its own partition wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from tabhelm.election import Backoff
from tabhelm.errors import DatabaseClosed, DatabaseError, Unreachable
from tabhelm.leadership import LeaderContext
from tabhelm.leadership.barrier import outbid, raise_marks
from tabhelm.observe import OperationDied, QueuePaused, WriteRefused
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.sender import SEND_TIMEOUT, Reply, send_batch
from tabhelm.queue.shared import SharedQueue

BATCH = 100
LANE = "lane-0"
POLL = 30.0
"""Seconds after which an idle flusher looks by itself, in case a nudge was lost."""
BASE_DELAY = 0.5
MAX_DELAY = 60.0
MAX_ATTEMPTS = 20
"""After so many ``retry`` answers an operation is a dead letter."""
_REFUSALS = 5


class Batch:
    """Claimed operations of one lane, in order. Send them, or settle them yourself; else they go back as they were."""

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

    Raises:
        LeadershipLost: the tenure ended.
    """
    lane = _Lane(queue, context, limit)
    try:
        await lane.recover()
        while True:
            batch = await lane.next()
            yield batch
            if not batch.settled:
                await batch.settle([])
    finally:
        lane.close()


async def flush(
    queue: SharedQueue, context: LeaderContext, endpoint: str, *, limit: int = BATCH, timeout: float = SEND_TIMEOUT
) -> None:
    """The built-in leader loop: raise the receiver's marks, then send batch after batch to ``endpoint``."""
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
        self._queue = queue
        self._context = context
        self._limit = limit
        self._size = limit
        self._stream = context.tenure.stream(LANE)
        self._raised: set[str] = set()
        self._backoff = Backoff(queue.services.entropy, BASE_DELAY, MAX_DELAY)
        self._pause = 0.0
        self._wake = asyncio.Event()
        self._unsubscribe = queue.subscribe(self._wake.set)
        context.tenure.on_revoked(self._wake.set)

    def close(self) -> None:
        self._unsubscribe()

    # -- claiming -----------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        store, tenure = self._queue.store, self._context.tenure
        while True:
            try:
                if await store.recover(tenure.grant):
                    self._queue.changed()
                return
            except DatabaseClosed:
                continue
            except DatabaseError as failure:
                await self._storage_failed(failure)

    async def next(self) -> Batch:
        while True:
            await self.rest()
            await self._until_resumed()
            self._wake.clear()
            try:
                claimed, dead, due = await self._queue.store.claim(self._context.tenure.grant, self._size)
            except DatabaseClosed:
                continue  # closed under us: the next transaction opens anew, and sees whether our epoch is still there
            except DatabaseError as failure:
                await self._storage_failed(failure)
                continue
            self._report_dead(dead)
            if claimed:
                self._queue.changed()
                self._wake.clear()
                return Batch(self, claimed)
            await self._wait(POLL if due is None else min(due, POLL))

    async def rest(self) -> None:
        """Keep the pause that the endpoint asked for."""
        pause, self._pause = self._pause, 0.0
        if pause > 0:
            await self._context.sleep(pause)
        self._context.tenure.ensure()

    async def _until_resumed(self) -> None:
        while self._queue.paused is not None:
            await self._wait(None)

    async def _wait(self, seconds: float | None) -> None:
        timer = self._queue.services.clock.call_later(seconds, self._wake.set) if seconds is not None else None
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._wake.clear()
        self._context.tenure.ensure()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def raise_marks(self, endpoint: str) -> bool:
        """The barrier, once for each endpoint and tenure; false (and a pause) if it does not stand yet."""
        if endpoint in self._raised:
            return True
        services = self._queue.services
        try:
            await raise_marks(services.http, endpoint, self._context.tenure, self._stream, services.events)
        except Unreachable as failure:
            self._failed(str(failure), None)
            return False
        self._raised.add(endpoint)
        return True

    async def deliver(self, batch: Batch, endpoint: str, timeout: float) -> None:
        if not await self.raise_marks(endpoint):
            await self.settle(batch, {})
            return
        reply = await self._send(batch, endpoint, timeout)
        await self._settle_reply(batch, reply)

    async def _send(self, batch: Batch, endpoint: str, timeout: float) -> Reply:
        services, tenure = self._queue.services, self._context.tenure
        for _ in range(_REFUSALS):
            token = self._stream.next_token()
            reply = await send_batch(services.http, endpoint, token, batch.operations, timeout=timeout)
            if reply.kind not in ("stale", "overtaken") or reply.high_water is None:
                return reply
            services.events.emit(WriteRefused(tenure.resource, token.epoch, reply.kind))
            if reply.kind == "stale":
                await outbid(tenure, reply.high_water, services.events)
        return Reply("busy", f"refused {_REFUSALS} times in a row")

    async def _settle_reply(self, batch: Batch, reply: Reply) -> None:
        if reply.kind == "answered":
            self._backoff.reset()
            self._queue.last_error = None
            self._size = min(self._limit, self._size * 2)
            await self.settle(batch, reply.outcomes)
            return
        single = len(batch.operations) == 1
        if reply.kind == "denied":
            self._queue.pause(reply.detail)
            self._queue.services.events.emit(QueuePaused(self._queue.resource, reply.detail))
            await self.settle(batch, {})
        elif reply.kind == "unfit" and single:
            operation = batch.operations[0]
            await self.settle(batch, {operation.op_id: Outcome(operation.op_id, "rejected", reply.detail)})
        else:
            # Smaller batches after each failure: one operation that the receiver chokes on must not stop the others.
            self._size = max(1, len(batch.operations) // 2)
            if reply.kind != "unfit":
                self._failed(reply.detail, reply.retry_after)
            unknown = (
                {item.op_id: Outcome(item.op_id, "unknown", reply.detail) for item in batch.operations}
                if reply.kind == "unknown"
                else {}
            )
            await self.settle(batch, unknown)

    def _failed(self, detail: str, retry_after: float | None) -> None:
        delay = self._backoff.next()
        self._pause = max(delay, retry_after or 0.0)
        self._queue.last_error = detail

    # -- settling -----------------------------------------------------------------------------------------------------

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
        while True:
            try:
                dead = await self._queue.store.settle(self._context.tenure.grant, batch.operations, final, delays)
                break
            except DatabaseClosed:
                self._context.tenure.ensure()
            except DatabaseError as failure:
                await self._storage_failed(failure)
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

    async def _storage_failed(self, failure: DatabaseError) -> None:
        self._queue.last_error = f"{failure.code}: {failure}"
        await self._context.sleep(self._backoff.next())
