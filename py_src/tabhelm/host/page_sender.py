"""The page's own functions: a queue's sender and headers, and the headers of an election's policy.

They stay in the page, are asked over the wire, and answer a call by its number; what comes for a call that nobody waits
for any more is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tabhelm.errors import LeadershipLost, PageFunctionFailed
from tabhelm.fencing.http_form import token_fields, token_header
from tabhelm.host.wire import Message, Post, field, optional_text
from tabhelm.json_text import is_number
from tabhelm.ports.database import Opaque
from tabhelm.queue.records import SAID, Operation, Outcome
from tabhelm.queue.sending import Sending

MAX_TEXT = 2_000


class PageFunctions:
    """All calls of one session to its page. ``lost(queue, reason)``: the page may not, or cannot, lead this queue;
    false where it is none, but an election."""

    def __init__(self, post: Post, lost: Callable[[str, str], bool]) -> None:
        self._post = post
        self._lost = lost
        self._waiting: dict[int, tuple[str, asyncio.Future[Message]]] = {}
        self._last = 0
        self.handlers: dict[str, Callable[[Message], None]] = {"sent": self._sent}

    async def ask(
        self,
        kind: str,
        queue: str,
        fields: Mapping[str, Any],
        values: Sequence[Opaque] = (),
        why: Callable[[], str] = lambda: "stopped",
    ) -> Message:
        """The page's answer; ``queue`` is its handle of a queue or an election. Cancelled, it tells the page to stop:
        ``why`` gives the reason.

        Raises:
            PageFunctionFailed: the function threw, or (of an election) cannot be asked.
        """
        self._last += 1
        call = self._last
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[call] = queue, answer
        try:
            self._post({"type": kind, "queue": queue, "call": call, **fields}, values)
            told = await answer
        except asyncio.CancelledError:
            self._post({"type": "unsend", "queue": queue, "call": call, "reason": why()})
            raise
        finally:
            del self._waiting[call]
        error = told.get("error")
        if error is not None:
            name, text = (str(error.get(key) or "")[:MAX_TEXT] if isinstance(error, dict) else "" for key in _ERROR)
            raise PageFunctionFailed(f"{name or 'Error'}: {text}" if text else name or "Error")
        return told

    def _sent(self, message: Message) -> None:
        waiting = self._waiting.get(field(message, "call", int))
        if waiting is None or waiting[1].done():
            return
        queue, answer = waiting
        lost = optional_text(message, "lost")
        if lost is None:
            answer.set_result(message)
        elif not self._lost(queue, lost):  # else who waits is cancelled with the tenure: an attempt of unknown outcome
            answer.set_exception(PageFunctionFailed(f"the page cannot be asked: {lost}"))


class PageSender:
    """The page's ``send`` (``each``) or ``sendBatch``, as the flusher sees it."""

    def __init__(self, functions: PageFunctions, queue: str, *, each: bool) -> None:
        self._functions = functions
        self._queue = queue
        self.each = each

    async def send(self, operations: Sequence[Operation], sending: Sending) -> Sequence[Outcome]:
        """Let the page send them.

        Raises:
            PageFunctionFailed: it threw.
            ValueError: its answer makes no sense.
        """
        values: list[Opaque] = []
        views = [operation_view(operation, values) for operation in operations]
        token = sending.token
        fields = {
            "operations": views,
            "token": token_fields(token),
            "header": token_header(token),
            "attempt": sending.attempt,
            "endpoint": sending.endpoint,
        }

        def why() -> str:
            try:
                sending.ensure()
            except LeadershipLost as lost:
                return lost.reason
            return "timeout"

        told = await self._functions.ask("send", self._queue, fields, values, why)
        results = told.get("results")
        if not isinstance(results, list) or len(results) != len(operations):
            raise ValueError(f"the page answered {results!r:.60}: {len(operations)} results are expected")
        return [_outcome(operation, result) for operation, result in zip(operations, results, strict=True)]


def page_headers(functions: PageFunctions, queue: str) -> Callable[[], Any]:
    """The page's ``headers`` function, as the queue's options want it."""

    async def headers() -> Any:
        return (await functions.ask("headers", queue, {})).get("headers")

    return headers


def operation_view(operation: Operation, values: list[Opaque]) -> dict[str, Any]:
    """An operation in the page's words. A payload that is no JSON text is put into ``values``; ``value`` is its place
    there."""
    view: dict[str, Any] = {
        "id": operation.op_id,
        "partition": operation.partition,
        "attempts": operation.attempts,
        "enqueuedAtMs": operation.enqueued_at * 1000,
    }
    if operation.value is None:
        return view | {"payload": operation.payload}
    values.append(operation.value)
    return view | {"value": len(values) - 1}


def _outcome(operation: Operation, result: Any) -> Outcome:
    if not isinstance(result, dict) or result.get("status") not in SAID:
        raise ValueError(f"the page answered {result!r:.60}: a status is expected, one of {', '.join(SAID)}")
    detail = result.get("detail")
    wait = result.get("retryAfterMs")
    if wait is not None and not (is_number(wait) and wait >= 0):
        raise ValueError(f"retryAfterMs {wait!r:.60} is not valid: a number of milliseconds is expected")
    return Outcome(
        operation.op_id,
        result["status"],
        detail[:500] if isinstance(detail, str) else "",
        None if wait is None else wait / 1000,
    )


_ERROR = ("name", "message")
