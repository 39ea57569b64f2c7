"""Batches for the app's own leader loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

from tabhelm.errors import LeadershipLost
from tabhelm.leadership import LeaderContext
from tabhelm.queue.claims import Claim
from tabhelm.queue.delivery import Delivery
from tabhelm.queue.flush_run import FlushRun
from tabhelm.queue.ledger import Ledger
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.records import Outcome
from tabhelm.queue.settling import Settlement
from tabhelm.queue.shared import SharedQueue
from tabhelm.queue.transports import HttpTransport, Transport


class Batch:
    """Claimed operations of one lane, in order. Send them, or settle them yourself: those that ``settle`` is given no
    outcome for go back as they were. A batch that was left open counts as sent with an unknown outcome."""

    def __init__(self, loop: _OwnLoop, claim: Claim) -> None:
        self._loop = loop
        self._claim = claim
        self.operations = claim.operations
        self.settled = False

    async def send(self, endpoint: str, *, timeout: float | None = None) -> None:
        """POST the batch to a fenced receiver and settle by its answer. ``timeout`` in seconds.

        Whatever the network or the server does is settled, not raised: operations are committed, dead or queued again.

        Raises:
            LeadershipLost: the tenure ended; the next leader takes care of the operations.
        """
        await self._loop.send(self._claim, self._loop.http(endpoint, timeout))
        self.settled = True

    async def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Write down what became of the operations.

        Raises:
            LeadershipLost: the tenure ended; the next leader takes care of the operations.
        """
        found = {outcome.op_id: outcome for outcome in outcomes}
        judged, delays = self._loop.run.pace.judged(self.operations, found)
        self._loop.run.queue.note(self.operations, judged)
        await self._loop.ledger.settle(Settlement(self._claim, judged, delays))
        self.settled = True

    async def _abandon(self) -> None:
        """Settle it if nobody did: it may have been sent, by whatever means."""
        if not self.settled:
            self.settled = True
            run = self._loop.run
            run.pace.wait(run.options.base_delay)
            detail = "neither sent nor settled"
            unknown = {item.op_id: Outcome(item.op_id, "unknown", detail) for item in self.operations}
            await self._loop.ledger.settle(Settlement(self._claim, unknown))


class _OwnLoop:
    """What the batches of one loop share."""

    def __init__(self, queue: SharedQueue, context: LeaderContext, options: QueueOptions) -> None:
        self.run = FlushRun(queue, context, options)
        self.delivery = Delivery(self.run)
        self.ledger = Ledger(self.run, self.delivery)
        self._transports: dict[tuple[str, float | None], Transport] = {}

    def http(self, endpoint: str, timeout: float | None) -> Transport:
        """The way to a fenced receiver, whose marks are raised once in a tenure."""
        run, options = self.run, self.run.options
        if (endpoint, timeout) not in self._transports:
            if timeout is not None:
                options = replace(options, send_timeout=timeout)
            transport = HttpTransport(run.queue.services, run.context, endpoint, options)
            self._transports[endpoint, timeout] = transport
        return self._transports[endpoint, timeout]

    async def send(self, claim: Claim, transport: Transport) -> None:
        settle = self.ledger.settle
        await settle(await self.delivery.of(claim, transport, self.run.stream(0), settle))


async def batches(
    queue: SharedQueue, context: LeaderContext, options: QueueOptions | None = None
) -> AsyncIterator[Batch]:
    """Batches of operations, as they become due; waits when there are none. Ends only by an error.

    One at a time in a tenure: a second one takes over what the first has in flight.

    Raises:
        LeadershipLost: the tenure ended.
        WrongResource: the tenure is of another resource.
    """
    loop = _OwnLoop(queue, context, options or QueueOptions())
    batch: Batch | None = None
    try:
        await loop.ledger.recover()
        while True:
            batch = Batch(loop, await loop.ledger.next())
            yield batch
            await batch._abandon()
    finally:
        loop.run.close()
        if batch is not None:
            with suppress(LeadershipLost):  # then the next leader recovers it
                await batch._abandon()
