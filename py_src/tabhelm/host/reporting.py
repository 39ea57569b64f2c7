"""The log ``tabhelm`` of a page that runs Python itself: tracebacks of the app's own functions that fail."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable

from tabhelm.errors import LeadershipLost
from tabhelm.leadership import LeaderContext, LeaderLoop
from tabhelm.observe import Event, TaskFailed
from tabhelm.queue import Queue
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.sending import Sender, Sending
from tabhelm.queue.tab_queues import QueueLoop

_log = logging.getLogger("tabhelm")


def reporting(name: str, loop: LeaderLoop) -> LeaderLoop:
    """The loop, with a traceback in the log when it fails; its election only keeps one line of it."""

    async def run(context: LeaderContext) -> None:
        await _watched(name, lambda: loop(context))

    return run


def reporting_queue(name: str, loop: QueueLoop) -> QueueLoop:
    async def run(context: LeaderContext, queue: Queue) -> None:
        await _watched(name, lambda: loop(context, queue))

    return run


class ReportingSender:
    """The app's sender, with a traceback in the log when it fails; the operation only keeps one line of it."""

    def __init__(self, name: str, sender: Sender) -> None:
        self._name = name
        self._sender = sender
        self.each = bool(getattr(sender, "each", False))

    async def send(self, operations: Sequence[Operation], sending: Sending) -> Sequence[Outcome]:
        try:
            return await self._sender.send(operations, sending)
        except LeadershipLost:
            raise
        except Exception:
            _log.exception("the sender of queue %r failed at attempt %d", self._name, sending.attempt)
            raise


async def _watched(name: str, begin: Callable[[], Awaitable[None]]) -> None:
    try:
        work = begin()
        if not isawaitable(work):
            raise TypeError(f"the leader loop of {name!r} is no async function: write `async def` before it")
        await work
    except LeadershipLost:
        raise
    except Exception:
        _log.exception("the leader loop of %r failed; the tab stands again after a pause", name)
        raise


def report(event: Event) -> None:
    """A subscriber of events."""
    if isinstance(event, TaskFailed):
        _log.error("%s failed: %s", event.task, event.error)
