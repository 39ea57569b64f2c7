"""A page's queues: opened, filled and asked about from the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tabhelm.errors import InvalidOptions, InvalidPayload, MalformedMessage, TabhelmError
from tabhelm.host.calls import WithValues
from tabhelm.host.coalescing import Coalescer
from tabhelm.host.page_sender import PageFunctions, PageSender, operation_view, page_headers
from tabhelm.host.views import stats_view
from tabhelm.host.wire import Message, Post, field, optional_text, words
from tabhelm.json_text import loads
from tabhelm.leadership.candidacy import UNHEALTHY
from tabhelm.ports.database import Opaque
from tabhelm.queue import NewOperation, Queue
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.records import DEFAULT_PARTITION, drawn_at
from tabhelm.services import Services
from tabhelm.tab import Tab

STATS_EVERY = 0.2
"""Seconds between two figures of a queue, each of which costs a transaction."""
FRESH = 2.0
"""Seconds for which an id counts as drawn for this very call. A call that is read later was perhaps given to another
engine meanwhile, by a page that had given this one up, and its operation sent and settled."""


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
        self._coalescer = Coalescer(services.ports.clock, STATS_EVERY)
        self.functions = PageFunctions(post, self._lost)
        self.handlers: dict[str, Callable[[Message], None]] = {"queue": self._queue} | self.functions.handlers
        self.calls: dict[str, Callable[[Message], Awaitable[Any]]] = {
            "enqueue": self._enqueue,
            "stats": self._stats,
            "deadLetters": self._dead_letters,
            "retryDead": self._retry_dead,
            "removeDead": self._remove_dead,
            "exportDead": self._export_dead,
            "resumeQueue": self._resume_queue,
        }

    def end(self) -> None:
        """The page is gone."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._coalescer.end()

    def say_all(self) -> None:
        """The page goes on after a standstill."""
        for handle in self._queues:
            self._say_stats(handle)

    def _queue(self, message: Message) -> None:
        handle = field(message, "queue", str)
        try:
            given = dict(field(message, "options", dict, {}))
            flush = _flush(given.pop("flush", None))
            options = self._options(handle, given)
            queue = self._tab.queue(
                field(message, "name", str),
                scope=optional_text(message, "scope"),
                flush=flush,
                options=options,
            )
        except TabhelmError as error:
            self._queues[handle] = error
            problem = {"code": error.code, "message": str(error)}
            self._post({"type": "queue-stats", "queue": handle, "error": problem})
            return
        self._queues[handle] = queue
        self._unsubscribe.append(queue.subscribe(lambda: self._soon(handle)))
        self._soon(handle)

    def _options(self, handle: str, options: dict[str, Any]) -> QueueOptions:
        """What the page wants. Its functions stay there: in the message each is only ``true``."""
        own: dict[str, Any] = {}
        functions = [key for key in ("send", "sendBatch") if options.pop(key, None)]
        if len(functions) > 1:
            raise InvalidOptions("a queue has send or sendBatch, not both: leave one out")
        if functions:
            own["sender"] = PageSender(self.functions, handle, each=functions == ["send"])
        if options.get("headers") is True:
            del options["headers"]
            own["headers"] = page_headers(self.functions, handle)
        return QueueOptions.from_wire(options, **own)

    def _lost(self, handle: str, reason: str) -> bool:
        """The page's functions cannot be asked: somebody else shall lead the queue, if there is anybody."""
        queue = self._queues.get(handle)
        election = self._tab.elections.get(queue.shared.resource) if isinstance(queue, Queue) else None
        if election is not None:
            election.step_down(reason if reason == "doubt" else UNHEALTHY)
        return handle in self._queues

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
        values = params.get("values")
        if values is not None and (not isinstance(values, list) or len(values) != len(items)):
            raise MalformedMessage(f"call: {len(items)} operations need as many values")
        now = self._services.ports.clock.wall()
        operations = [_new_operation(item, values[at] if values else None, now) for at, item in enumerate(items)]
        return {"added": await self._handle(params).enqueue_all(operations)}

    async def _stats(self, params: Message) -> Any:
        queue = self._handle(params)
        return stats_view(await queue.stats(), queue.shared)

    async def _dead_letters(self, params: Message) -> Any:
        values: list[Opaque] = []
        letters = []
        for letter in await self._handle(params).dead_letters():
            view = operation_view(letter, values) | {
                "reason": letter.reason,
                "diedAtMs": letter.died_at * 1000,
                "blocks": letter.blocks,
            }
            if letter.value is None:
                view["payload"] = loads(letter.payload)
            letters.append(view)
        return WithValues({"letters": letters}, values)

    async def _retry_dead(self, params: Message) -> Any:
        return {"count": await self._handle(params).retry_dead(words(params, "ids"))}

    async def _remove_dead(self, params: Message) -> Any:
        return {"count": await self._handle(params).remove_dead(words(params, "ids"))}

    async def _export_dead(self, params: Message) -> Any:
        return await self._handle(params).export_dead()

    async def _resume_queue(self, params: Message) -> Any:
        self._handle(params).resume()

    # -- telling the page ---------------------------------------------------------------------------------------------

    def _soon(self, handle: str) -> None:
        self._coalescer.soon(handle, lambda: self._say_stats(handle))

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


def _flush(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise InvalidOptions(f"flush {value!r:.60} is not valid: true or false is expected")


def _new_operation(item: Any, value: Any, now: float) -> NewOperation:
    if not isinstance(item, dict):
        raise InvalidPayload(f"operation {item!r:.80} is not an object")
    known = field(item, "id", str), field(item, "partition", str, DEFAULT_PARTITION), field(item, "fresh", bool, False)
    op_id, partition, fresh = known
    fresh = fresh and abs(now - drawn_at(op_id)) < FRESH
    if value is not None:
        if not isinstance(value, Opaque):
            raise InvalidPayload(f"payload of operation {op_id!r} came as {value!r:.60}")
        digest, size = field(item, "digest", str), field(item, "size", int)
        return NewOperation(op_id, "", partition, fresh, value, digest, size)
    payload = field(item, "payload", str)
    try:
        loads(payload)
    except ValueError as error:
        raise InvalidPayload(f"payload of operation {op_id!r} is not JSON text: {error}") from None
    return NewOperation(op_id, payload, partition, fresh)
