"""What all parts of one tenure's sending share: options and pace, rests between sends, and transactions that are
repeated until the storage lets them through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tabhelm.errors import DatabaseClosed, DatabaseError, QuotaExceeded, WrongResource
from tabhelm.leadership import LeaderContext
from tabhelm.leadership.tenure import TokenStream
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.pace import Pace
from tabhelm.queue.settling import RETENTION
from tabhelm.queue.shared import SharedQueue

T = TypeVar("T")
POLL = 30.0
"""Seconds after which an idle flusher looks by itself, in case a nudge was lost, and a paused one tries again."""
_CALM = 0.25
"""Seconds that a storage which failed is left alone, whatever it says meanwhile."""


class FlushRun:
    """One tenure's work on one queue."""

    def __init__(self, queue: SharedQueue, context: LeaderContext, options: QueueOptions) -> None:
        if context.resource != queue.resource:
            # Two resources have two leaders: both would claim, and neither's epoch says anything of the other's.
            raise WrongResource(
                f"queue {queue.resource!r} is flushed by its own leader, not by that of {context.resource!r}: "
                "give the loop to tab.queue(name, loop=...)"
            )
        self.queue = queue
        self.context = context
        self.tenure = context.tenure
        self.options = options
        self.pace = Pace(queue.services.clock, queue.services.entropy, options)
        self.retention = RETENTION
        """How long the receiver remembers operation ids, in seconds."""
        self._clock = queue.services.clock
        self._tells = False
        self._probe_at: float | None = None
        """While the queue is paused: when to see whether it still must be."""
        self._wake = asyncio.Event()
        self._resting: set[asyncio.Event] = set()
        """Of those that wait for the storage: a wake-up of theirs is nobody else's."""
        self._unsubscribe = queue.subscribe(self._heard)
        self.tenure.on_revoked(self._wake.set)
        self.tenure.on_revoked(self._stir)
        queue.unpause()  # another tab, another session, another day: ask afresh

    def close(self) -> None:
        self._unsubscribe()
        self.queue.forget()

    def stream(self, lane: int) -> TokenStream:
        return self.tenure.stream(f"lane-{lane}")

    # -- waiting ------------------------------------------------------------------------------------------------------

    @property
    def resting(self) -> float:
        """Seconds for which nothing may be sent: the endpoint asked for a pause, or the queue is paused and is not to
        be tried again yet. What waits as long as this says, and then goes on, calls ``probed``."""
        if (pause := self.pace.pause) > 0:
            return pause
        if self.queue.paused is None:
            self._probe_at = None
            return 0.0
        now = self._clock.monotonic()
        if self._probe_at is None:
            self._probe_at = now + POLL
        return max(0.0, self._probe_at - now)

    def probed(self) -> None:
        """A paused queue is being tried: not again before ``POLL`` is over."""
        self._probe_at = None

    async def rest(self) -> None:
        """Wait until something may be sent."""
        while (left := self.resting) > 0:
            await self.wait(left)
        self.tenure.ensure()
        self.probed()

    async def wait(self, seconds: float) -> None:
        """Wait until something changed, or so long.

        Raises:
            LeadershipLost: the tenure ended.
        """
        timer = self._clock.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        self._wake.clear()
        self.tenure.ensure()

    def wake(self) -> None:
        """End a wait."""
        self._wake.set()

    def changed(self) -> None:
        """We changed something: tell everybody else."""
        self._tells = True
        try:
            self.queue.changed()
        finally:
            self._tells = False

    def _heard(self) -> None:
        if not self._tells:
            self._wake.set()
            self._stir()

    def _stir(self) -> None:
        for event in self._resting:
            event.set()

    # -- storing ------------------------------------------------------------------------------------------------------

    async def stored(self, transaction: Callable[[], Awaitable[T]], *, full: bool = False) -> T:
        """Repeat a transaction until storage lets it through, or the tenure ends.

        Raises:
            QuotaExceeded: with ``full``, at once.
        """
        closed = False
        while True:
            self.tenure.ensure()
            try:
                return await transaction()
            except DatabaseError as failure:
                if full and isinstance(failure, QuotaExceeded):
                    raise
                again, closed = closed, isinstance(failure, DatabaseClosed)
                if closed and not again:
                    continue  # closed under us: the next one opens anew, and sees whether our epoch is still there
                self.queue.last_error = f"{failure.code}: {failure}"
                await self.storage_rest(deaf=closed)

    async def storage_rest(self, *, deaf: bool = False) -> None:
        """Wait after the storage failed; less long if it is heard that something changed, in it or in the queue.
        ``deaf``: what is heard right after the failure comes from it: each connection that dies is told.

        Raises:
            LeadershipLost: the tenure ended.
        """
        event, long = asyncio.Event(), self.pace.storage_failed()
        self._resting.add(event)
        try:
            await self.context.sleep(min(long, _CALM))
            if deaf:
                event.clear()
            timer = self._clock.call_later(max(0.0, long - _CALM), event.set)
            try:
                await event.wait()
            finally:
                timer.cancel()
        finally:
            self._resting.discard(event)
        self.tenure.ensure()
