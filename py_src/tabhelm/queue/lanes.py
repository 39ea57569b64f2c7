"""The built-in loop: keep each lane busy.

What became of one batch and the claim of the next are one transaction, and while a batch is on its way the one behind
it is claimed already, from other partitions. So a lane waits for the receiver, and seldom for the storage.
"""

from __future__ import annotations

import asyncio

from tabhelm.leadership.tenure import TokenStream
from tabhelm.queue.claims import Claim
from tabhelm.queue.delivery import Delivery
from tabhelm.queue.flush_run import POLL, FlushRun
from tabhelm.queue.ledger import Ledger
from tabhelm.queue.settling import Settlement
from tabhelm.queue.transports import Transport


class Lanes:
    """So many batches on their way at once, each with a token stream of its own."""

    def __init__(self, run: FlushRun, delivery: Delivery, ledger: Ledger, transport: Transport) -> None:
        self._run = run
        self._delivery = delivery
        self._ledger = ledger
        self._transport = transport
        self._clock = run.queue.services.clock
        self._free = list(range(run.options.lanes))
        self._running: dict[asyncio.Task[None], int] = {}
        self._failures: list[BaseException] = []
        self._claimed: list[Claim] = []
        """Not on their way yet."""
        self._finished: list[Settlement] = []
        """Not written down yet."""
        self._more = False
        """There was more to claim, the last time."""
        self._look_at = 0.0
        """When to look whether there is something to claim."""

    async def run(self) -> None:
        """Until the tenure ends.

        Raises:
            LeadershipLost: it did.
        """
        run = self._run
        try:
            while True:
                if self._failures:
                    raise self._failures[0]
                run.tenure.ensure()
                now = self._clock.monotonic()  # once a round: what is due by one reading is not waited for by another
                resting = run.resting
                if not resting:
                    self._start()
                self._give_back(bool(resting))
                lanes = 0 if resting else self._wanted(now)
                if self._finished or lanes:
                    await self._turn(lanes)
                    continue
                await run.wait(resting or self._idle(now))
                self._look_at = 0.0
        finally:
            left = list(self._running)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _wanted(self, now: float) -> int:
        """For how many lanes to claim now."""
        if self._claimed:
            return 0
        if self._free:
            return len(self._free) if self._finished or self._look_at <= now else 0
        # One ahead. Not where each operation is a send of its own: the storage is no bottleneck there.
        return int(not self._transport.each and (self._more or bool(self._finished)))

    def _idle(self, now: float) -> float:
        """Seconds to wait, if nobody says before that there is something to do."""
        return min(self._look_at - now, POLL) if self._free and not self._claimed else POLL

    async def _turn(self, lanes: int) -> None:
        run, clock = self._run, self._clock
        finished, self._finished = self._finished, []
        found = await self._ledger.turn(finished, lanes)
        if not lanes:
            return
        self._claimed += found.claims
        self._more = found.more
        if not found.more:
            self._look_at = clock.monotonic() + (POLL if found.due is None else found.due)
        if not run.resting:
            self._start()
        run.probed()

    def _start(self) -> None:
        while self._free and self._claimed and self._fits(self._claimed[0]):
            claim, lane = self._claimed.pop(0), self._free.pop(0)
            task = asyncio.get_running_loop().create_task(self._deliver(claim, self._run.stream(lane)))
            self._running[task] = lane
            task.add_done_callback(self._ended)

    def _fits(self, claim: Claim) -> bool:
        """Whether it may still be sent as it was claimed."""
        return len(claim.operations) <= self._run.pace.size and not self._delivery.outdated(claim)

    def _give_back(self, resting: bool) -> None:
        """What was claimed ahead and may not be sent now goes back as it was."""
        for claim in [each for each in self._claimed if resting or not self._fits(each)]:
            self._claimed.remove(claim)
            self._finished.append(Settlement(claim))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._free.append(self._running.pop(task))
        if task.cancelled():  # by nobody here: what it awaited was
            self._failures.append(RuntimeError("a lane of the queue was cancelled"))
        elif (error := task.exception()) is not None:
            self._failures.append(error)
        self._run.wake()

    async def _deliver(self, claim: Claim, stream: TokenStream) -> None:
        settlement = await self._delivery.of(claim, self._transport, stream, self._settle)
        self._finished.append(settlement)

    async def _settle(self, settlement: Settlement) -> None:
        """A part of a claim, of which another part is still to be sent."""
        await self._ledger.settle(settlement)
        if self._free and len(settlement.done) + len(settlement.left) < len(settlement.claim.operations):
            self._run.wake()  # something came back
