"""Batches for the app's own leader loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

from tabhelm.errors import LeadershipLost
from tabhelm.leadership import LeaderContext
from tabhelm.queue.carriers import Carrier, HttpCarrier
from tabhelm.queue.claims import Claim
from tabhelm.queue.clerk import Clerk
from tabhelm.queue.delivery import Delivery
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.records import Outcome
from tabhelm.queue.settling import Settlement
from tabhelm.queue.shared import SharedQueue
from tabhelm.queue.shift import Shift


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
        judged, delays = self._loop.shift.pace.judged(self.operations, found)
        self._loop.shift.queue.note(self.operations, judged)
        await self._loop.clerk.settle(Settlement(self._claim, judged, delays))
        self.settled = True

    async def _abandon(self) -> None:
        """Settle it if nobody did: it may have been sent, by whatever means."""
        if not self.settled:
            self.settled = True
            shift = self._loop.shift
            shift.pace.wait(shift.options.base_delay)
            detail = "neither sent nor settled"
            unknown = {item.op_id: Outcome(item.op_id, "unknown", detail) for item in self.operations}
            await self._loop.clerk.settle(Settlement(self._claim, unknown))


class _OwnLoop:
    """What the batches of one loop share."""

    def __init__(self, queue: SharedQueue, context: LeaderContext, options: QueueOptions) -> None:
        self.shift = Shift(queue, context, options)
        self.delivery = Delivery(self.shift)
        self.clerk = Clerk(self.shift, self.delivery)
        self._carriers: dict[tuple[str, float | None], Carrier] = {}

    def http(self, endpoint: str, timeout: float | None) -> Carrier:
        """The way to a fenced receiver, whose marks are raised once in a tenure."""
        shift, options = self.shift, self.shift.options
        if (endpoint, timeout) not in self._carriers:
            if timeout is not None:
                options = replace(options, send_timeout=timeout)
            carrier = HttpCarrier(shift.queue.services, shift.context, endpoint, options)
            self._carriers[endpoint, timeout] = carrier
        return self._carriers[endpoint, timeout]

    async def send(self, claim: Claim, carrier: Carrier) -> None:
        settle = self.clerk.settle
        await settle(await self.delivery.of(claim, carrier, self.shift.stream(0), settle))


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
        await loop.clerk.recover()
        while True:
            batch = Batch(loop, await loop.clerk.next())
            yield batch
            await batch._abandon()
    finally:
        loop.shift.close()
        if batch is not None:
            with suppress(LeadershipLost):  # then the next leader recovers it
                await batch._abandon()
