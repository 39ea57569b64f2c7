"""A page's queues: opened, filled and asked about from the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tabhelm.errors import InvalidPayload, MalformedMessage, TabhelmError
from tabhelm.host.views import stats_view
from tabhelm.host.wire import Message, field, milliseconds, optional_text, words
from tabhelm.json_text import loads
from tabhelm.ports import Timer
from tabhelm.queue import NewOperation, Queue
from tabhelm.queue.flusher import BATCH
from tabhelm.queue.records import DEFAULT_PARTITION
from tabhelm.queue.sender import SEND_TIMEOUT
from tabhelm.services import Services
from tabhelm.tab import Tab

COALESCE = 0.05
"""Seconds in which changes of roster or queue become one message to the page."""
Post = Callable[[dict[str, Any]], None]


class PageQueues:
    """Those of one session. ``handlers`` and ``calls`` are what it makes of the page's messages; ``quiet``: the page
    stands still, and is told nothing that it can do without."""

    def __init__(self, tab: Tab, services: Services, post: Post, quiet: Callable[[], bool]) -> None:
        self._tab = tab
        self._services = services
        self._post = post
        self._quiet = quiet
        self._queues: dict[str, Queue | TabhelmError] = {}
        """By the page's handle; the error of one that could not be opened answers its calls."""
        self._unsubscribe: list[Callable[[], None]] = []
        self._timers: dict[str, Timer] = {}
        self.handlers: dict[str, Callable[[Message], None]] = {"queue": self._queue}
        self.calls: dict[str, Callable[[Message], Awaitable[Any]]] = {
            "enqueue": self._enqueue,
            "stats": self._stats,
            "deadLetters": self._dead_letters,
            "retryDead": self._retry_dead,
            "removeDead": self._remove_dead,
            "resumeQueue": self._resume_queue,
        }

    def end(self) -> None:
        """The page is gone."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for timer in self._timers.values():
            timer.cancel()

    def say_all(self) -> None:
        """The page goes on after a standstill."""
        for handle in self._queues:
            self._say_stats(handle)

    def _queue(self, message: Message) -> None:
        handle = field(message, "queue", str)
        options: dict[str, Any] = field(message, "options", dict, {})
        try:
            queue = self._tab.queue(
                field(message, "name", str),
                scope=optional_text(message, "scope"),
                endpoint=optional_text(options, "endpoint"),
                flush=options.get("flush"),
                limit=field(options, "batch", int, BATCH),
                send_timeout=milliseconds(options, "sendTimeoutMs", SEND_TIMEOUT),
            )
        except TabhelmError as error:
            self._queues[handle] = error
            problem = {"code": error.code, "message": str(error)}
            self._post({"type": "queue-stats", "queue": handle, "error": problem})
            return
        self._queues[handle] = queue
        self._unsubscribe.append(queue.subscribe(lambda: self._soon(handle)))
        self._soon(handle)

    def _handle(self, params: Message) -> Queue:
        handle = field(params, "queue", str)
        if handle not in self._queues:
            raise MalformedMessage(f"call: queue {handle!r} is not open in this session")
        queue = self._queues[handle]
        if isinstance(queue, TabhelmError):
            raise queue
        return queue

    async def _enqueue(self, params: Message) -> Any:
        items: list[Any] = field(params, "operations", list)
        operations = [_new_operation(item) for item in items]
        return {"added": await self._handle(params).enqueue_all(operations)}

    async def _stats(self, params: Message) -> Any:
        queue = self._handle(params)
        return stats_view(await queue.stats(), queue.shared)

    async def _dead_letters(self, params: Message) -> Any:
        letters = [
            {
                "id": letter.op_id,
                "partition": letter.partition,
                "payload": loads(letter.payload),
                "reason": letter.reason,
                "attempts": letter.attempts,
                "enqueuedAtMs": letter.enqueued_at * 1000,
            }
            for letter in await self._handle(params).dead_letters()
        ]
        return letters

    async def _retry_dead(self, params: Message) -> Any:
        return {"count": await self._handle(params).retry_dead(words(params, "ids"))}

    async def _remove_dead(self, params: Message) -> Any:
        return {"count": await self._handle(params).remove_dead(words(params, "ids"))}

    async def _resume_queue(self, params: Message) -> Any:
        self._handle(params).resume()

    # -- telling the page ---------------------------------------------------------------------------------------------

    def _soon(self, handle: str) -> None:
        if handle in self._timers:
            return

        def due() -> None:
            del self._timers[handle]
            self._say_stats(handle)

        self._timers[handle] = self._services.ports.clock.call_later(COALESCE, due)

    def _say_stats(self, handle: str) -> None:
        if not self._quiet():
            self._services.tasks.start(self._post_stats(handle), "queue stats")

    async def _post_stats(self, handle: str) -> None:
        queue = self._queues[handle]
        if isinstance(queue, TabhelmError):
            return
        try:
            view: dict[str, Any] = {"stats": stats_view(await queue.stats(), queue.shared)}
        except TabhelmError as error:
            view = {"error": {"code": error.code, "message": str(error)}}
        self._post({"type": "queue-stats", "queue": handle, **view})


def _new_operation(item: Any) -> NewOperation:
    if not isinstance(item, dict):
        raise InvalidPayload(f"operation {item!r:.80} is not an object")
    payload = field(item, "payload", str)
    try:
        loads(payload)
    except ValueError as error:
        raise InvalidPayload(f"payload of operation {item.get('id')!r} is not JSON text: {error}") from None
    return NewOperation(
        field(item, "id", str),
        payload,
        field(item, "partition", str, DEFAULT_PARTITION),
        field(item, "fresh", bool, False),
    )
