"""What all tabs of one engine share of a queue: its store, who wants to hear of changes, and why it is paused."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tabhelm.errors import DatabaseError
from tabhelm.listeners import Listeners
from tabhelm.messages import Nudge, encode
from tabhelm.observe import Events, QueueLost, QueueTrouble
from tabhelm.ports import Channel, Clock, Database, Entropy, Http, Timer
from tabhelm.queue.rate import Rate
from tabhelm.queue.records import Operation, Outcome, QueueStats
from tabhelm.queue.store import QueueStore
from tabhelm.queue.trouble import Trouble

NUDGE_EVERY = 0.02
"""Seconds: what changes more often is told to the other engines no more often."""
_HELD = 64
"""Partitions of which it is known why they wait."""
LOOK_EVERY = 5.0
"""Seconds in which changes by others make one look at what is left, so that nothing is called lost that was sent."""


@dataclass(frozen=True, slots=True)
class QueueServices:
    clock: Clock
    entropy: Entropy
    http: Http
    events: Events
    start: Callable[[Coroutine[Any, Any, None], str], object]
    """Run something beside what called it."""


class SharedQueue:
    """One queue in one engine."""

    def __init__(self, resource: str, store: QueueStore, services: QueueServices, hub: QueueHub) -> None:
        self.resource = resource
        self.store = store
        self.services = services
        self.paused: str | None = None
        self.trouble = Trouble(lambda detail: services.events.emit(QueueTrouble(resource, detail)))
        self._error: str | None = None
        self._held: dict[str, str] = {}
        """Why the first operation of a partition is to be sent again."""
        self._hub = hub
        self._listeners: Listeners[[]] = Listeners(f"subscriber of queue {resource}", services.events.failed)
        self._rate = Rate()
        store.on_lost = self._lost

    @property
    def last_error(self) -> str | None:
        """What the endpoint or the storage last did wrong, until it works; else why an operation is sent again."""
        return self._error or next(iter(self._held.values()), None)

    @last_error.setter
    def last_error(self, error: str | None) -> None:
        self._error = error

    def note(self, operations: Sequence[Operation], outcomes: Mapping[str, Outcome]) -> None:
        """Remember what is to be sent again, and why, for as long as it is so."""
        for operation in operations:
            outcome, partition = outcomes.get(operation.op_id), operation.partition
            if outcome is None:
                continue
            if outcome.done or outcome.status == "rejected":
                self._held.pop(partition, None)
            elif outcome.status in ("retry", "failed") and (partition in self._held or len(self._held) < _HELD):
                why = f": {outcome.detail}" if outcome.detail else ""
                self._held[partition] = f"operation {operation.op_id}: {outcome.status}{why}"

    def forget(self) -> None:
        """Somebody else may send from now on."""
        self._held.clear()

    def changed(self) -> None:
        """We changed something: tell our own listeners and the other engines."""
        self._saw()
        self._listeners.tell()
        self._hub.post(self.resource, resume=False)

    async def stats(self) -> QueueStats:
        """How many operations are in which state, and how fast they go.

        Raises:
            DatabaseError: the store could not be read.
        """
        stats = await self.store.stats()
        return replace(stats, rate=self._rate.per_second(self._saw()))

    async def look(self) -> None:
        """See what is left, and how much was done, whoever did it."""
        with suppress(DatabaseError):  # it will be seen by whoever gets through next
            await self.store.look()
            self._saw()

    def _saw(self) -> float:
        """Note how much is done by now, by whatever the last transaction found; gives the time."""
        now = self.services.clock.monotonic()
        if (totals := self.store.totals) is not None:
            self._rate.saw(now, totals)
        return now

    def pause(self, reason: str) -> None:
        """Stop sending until ``resume``: no retry can help (signed out, not allowed)."""
        self.paused = reason
        self._listeners.tell()

    def unpause(self) -> None:
        """Sending works again, or is to be tried afresh."""
        if self.paused is not None:
            self.paused = None
            self._listeners.tell()

    def resume(self) -> None:
        """Go on, wherever the queue is flushed."""
        self.paused = None
        self._listeners.tell()
        self._hub.post(self.resource, resume=True)

    def heard(self, nudge: Nudge) -> None:
        """Another engine changed something."""
        if nudge.resume:
            self.paused = None
        self._listeners.tell()
        self._hub.look_soon(self)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back when something changed; returns the way to stop."""
        return self._listeners.add(listener)

    def _lost(self, operations: int) -> None:
        self.services.events.emit(QueueLost(self.resource, operations))


class QueueHub:
    """All queues of one engine, by token resource."""

    def __init__(self, engine_id: str, channel: Channel, database: Database, services: QueueServices) -> None:
        self._engine_id = engine_id
        self._channel = channel
        self._database = database
        self._services = services
        self._queues: dict[str, SharedQueue] = {}
        self._nudged: dict[str, bool] = {}
        """Queues that were told of a moment ago; true if there is more to tell since."""
        self._looking: set[str] = set()
        """Queues that are to be looked at."""
        self._timers: set[Timer] = set()

    def close(self) -> None:
        """Tell and look no more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def open(self, resource: str) -> SharedQueue:
        if resource not in self._queues:
            store = QueueStore(self._database, self._services.clock, self._services.entropy, resource)
            self._queues[resource] = SharedQueue(resource, store, self._services, self)
        return self._queues[resource]

    def look_soon(self, queue: SharedQueue) -> None:
        """See what is left of operations that were there the last time."""
        totals, resource = queue.store.totals, queue.resource
        if totals is None or not totals.undone or resource in self._looking:
            return

        def look() -> None:
            self._looking.discard(resource)
            self._services.start(queue.look(), f"look at queue {resource}")

        self._looking.add(resource)
        self._later(LOOK_EVERY, look)

    def heard(self, nudge: Nudge) -> None:
        if (queue := self._queues.get(nudge.queue)) is not None:
            queue.heard(nudge)

    def storage_changed(self) -> None:
        """The database was closed or wiped: every count may be another."""
        for queue in self._queues.values():
            queue.heard(Nudge(self._engine_id, queue.resource))

    async def look(self) -> None:
        """See whether what was stored is still there; what is not is told (``QueueLost``)."""
        for queue in list(self._queues.values()):
            await queue.look()

    def post(self, resource: str, *, resume: bool) -> None:
        """Tell the other engines: at once, and what comes right after it together a moment later."""
        if not resume and resource in self._nudged:
            self._nudged[resource] = True
            return
        self._channel.post(encode(Nudge(self._engine_id, resource, resume)))
        if not resume:
            self._nudged[resource] = False
            self._later(NUDGE_EVERY, lambda: self._again(resource))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            act()

        timer = self._services.clock.call_later(seconds, due)
        self._timers.add(timer)

    def _again(self, resource: str) -> None:
        if self._nudged.pop(resource):
            self.post(resource, resume=False)
