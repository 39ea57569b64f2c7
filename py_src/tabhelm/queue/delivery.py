"""Send operations, and find what to write down of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from tabhelm.errors import QuotaExceeded
from tabhelm.leadership.tenure import TokenStream
from tabhelm.observe import QueuePaused
from tabhelm.queue.claims import Claim
from tabhelm.queue.flush_run import FlushRun
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.settling import Settlement
from tabhelm.queue.transports import Sent, Transport


class Delivery:
    """Whatever the network or the receiver does becomes a settlement, a pause, or both."""

    def __init__(self, run: FlushRun) -> None:
        self._run = run

    async def made_ready(self, transport: Transport, stream: TokenStream) -> bool:
        """The barrier, where there is one; false (and a pause) if it does not stand yet."""
        sent = await transport.ready(stream)
        if sent is None:
            return True
        if sent.kind != "answered":
            self._tell(sent)
            self._not_sent(sent)
            return False
        await self._reached(sent, calm=False)  # an operation may take the receiver down each time that it is up
        return True

    async def of(
        self, claim: Claim, transport: Transport, stream: TokenStream, settle: Callable[[Settlement], Awaitable[None]]
    ) -> Settlement:
        """Send a claim: what is to be settled of it. Where each operation is sent by itself, ``settle`` is called for
        each but the last before the next is sent: a crash leaves one unknown, not all."""
        if not await self.made_ready(transport, stream) or self.outdated(claim):
            return Settlement(claim)  # the next claim knows how long the receiver remembers
        if not transport.each:
            return Settlement(claim, *await self.send(claim.operations, transport, stream))
        stopped: set[str] = set()
        left = list(claim.operations)
        while True:
            operation = left.pop(0)
            outcomes, delays = await self.send([operation], transport, stream)
            outcome = outcomes.get(operation.op_id)
            if outcome is None or not outcome.goes_on(self._run.options.rejected):
                stopped.add(operation.partition)
            left = [item for item in left if item.partition not in stopped]
            if self._run.pace.pause > 0 or self._run.queue.paused is not None:
                left = []
            settlement = Settlement(claim, outcomes, delays, tuple(left))
            if not left:
                return settlement
            await settle(settlement)

    def outdated(self, claim: Claim) -> bool:
        """Whether one of unknown outcome may have been forgotten by the receiver, for all that is known by now."""
        return self._run.retention < claim.retention and any(item.unknown_since for item in claim.operations)

    async def send(
        self, operations: Sequence[Operation], transport: Transport, stream: TokenStream
    ) -> tuple[dict[str, Outcome], dict[str, float]]:
        """What to write down of each operation, and for how long it waits: those without outcome go back as they
        were."""
        pace = self._run.pace
        sent = await transport.send(operations, stream)
        if sent.kind == "answered":
            await self._reached(sent)
            pace.answered(operations)
            return self._noted(operations, *pace.judged(operations, dict(sent.outcomes)))
        if sent.kind == "refused":
            return dict(sent.outcomes), {}
        if sent.kind == "unfit":
            pace.unfit(operations)
            only = operations[0].op_id
            return {only: Outcome(only, "rejected", sent.detail)} if len(operations) == 1 else {}, {}
        if sent.kind in ("busy", "denied"):
            self._not_sent(sent)
            return {}, {}
        self._run.queue.last_error = sent.error
        alone = len(operations) == 1 and sent.kind == "unknown" and not pace.passed_by(operations[0])
        well = alone and await self._well(transport, stream)
        return self._noted(operations, *pace.failed(operations, sent, well=well))

    def _noted(
        self, operations: Sequence[Operation], outcomes: dict[str, Outcome], delays: dict[str, float]
    ) -> tuple[dict[str, Outcome], dict[str, float]]:
        self._run.queue.note(operations, outcomes)
        return outcomes, delays

    async def _well(self, transport: Transport, stream: TokenStream) -> bool:
        """Whether the endpoint takes an empty batch, though not the operation that was sent alone. If it does not,
        nothing else is sent before it does."""
        transport.doubt()
        sent = await transport.ready(stream)
        if sent is None:
            return False
        if sent.kind != "answered":
            self._tell(sent)
        if sent.kind in ("busy", "denied"):
            self._not_sent(sent)
        return sent.kind == "answered"

    def _tell(self, sent: Sent) -> None:
        """The endpoint does not take an empty batch."""
        if sent.kind != "denied" and not sent.offline:  # that is told as a pause; this by the browser
            counts = self._run.pace.pause <= 0  # else another lane found the same
            self._run.queue.trouble.failed(sent.error, lasting=sent.lasting, counts=counts)

    async def _reached(self, sent: Sent, *, calm: bool = True) -> None:
        """The receiver answers: forget its failures (``calm``), and learn how long it remembers operation ids."""
        run, queue = self._run, self._run.queue
        if calm:
            run.pace.reached()
        queue.last_error = None
        queue.trouble.over()
        queue.unpause()
        if sent.retention is not None and sent.retention < run.retention:
            run.retention = sent.retention
            with suppress(QuotaExceeded):  # the next tenure asks anew
                await run.stored(partial(queue.store.note_retention, sent.retention), full=True)

    def _not_sent(self, sent: Sent) -> None:
        """Pause where only a person can help, else wait: whatever it is, it will be the same in a moment."""
        queue = self._run.queue
        if sent.kind == "denied":
            if queue.paused != sent.detail:
                queue.services.events.emit(QueuePaused(queue.resource, sent.detail))
            queue.pause(sent.detail)
            return
        self._run.pace.not_reached(sent)
        queue.last_error = sent.error
