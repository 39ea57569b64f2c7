"""How a claim goes out: over HTTP in batches or one by one, or by the app's own sender. Each way says in the same words
what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tabhelm.app_headers import ask
from tabhelm.errors import LeadershipLost, NoHeaders
from tabhelm.fencing.complaint import answered, complaint
from tabhelm.fencing.reply import Reply
from tabhelm.leadership import LeaderContext
from tabhelm.leadership.barrier import try_barrier, write
from tabhelm.leadership.tenure import TokenStream
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.sender import json_payloads, read_outcomes, read_single, request_body
from tabhelm.queue.sending import Sender, Sending, matched
from tabhelm.queue.shared import QueueServices
from tabhelm.tasks import by_deadline


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of one send. ``answered``: ``outcomes`` hold. ``refused``: so do they, and nothing was sent: of some
    operations it is known that they cannot be. ``failed``: the sender raised, or took too long. The others as ``Reply``
    has them."""

    kind: Literal["answered", "refused", "busy", "denied", "unfit", "unknown", "failed"]
    detail: str = ""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    retry_after: float | None = None
    retention: float | None = None
    silent: bool = False
    complaint: str = ""
    """What is wrong with the endpoint, in words, and the way out."""
    lasting: bool = False
    """It will be so the next time, too."""
    offline: bool = False
    """The browser says that there is no network."""

    @property
    def error(self) -> str:
        return self.complaint or self.detail


class Transport(Protocol):
    """Sends operations, in order. ``each``: it wants them one at a time."""

    each: bool

    async def ready(self, stream: TokenStream) -> Sent | None:
        """Whatever must be done once before the first send of a tenure: what came of it, or ``None`` if it is done."""

    def doubt(self) -> None:
        """Have ``ready`` do it again."""

    async def send(self, operations: Sequence[Operation], stream: TokenStream) -> Sent: ...


class HttpTransport:
    """To a fenced receiver. Before the first send it raises the receiver's marks (the barrier)."""

    def __init__(self, services: QueueServices, context: LeaderContext, endpoint: str, options: QueueOptions) -> None:
        self.each = options.mode == "single"
        self.endpoint = endpoint
        self._services = services
        self._tenure = context.tenure
        self._timeout = options.send_timeout
        self._headers = options.headers
        self._raised = False

    async def ready(self, stream: TokenStream) -> Sent | None:
        if self._raised:
            return None
        services = self._services
        try:
            reply = await try_barrier(services.http, self.endpoint, self._tenure, stream, services.events, self._more)
        except NoHeaders as error:
            return Sent("busy", str(error))
        self._raised = reply.kind == "answered"
        return _sent(reply, {}, complaint(self.endpoint, reply))

    def doubt(self) -> None:
        self._raised = False

    async def send(self, operations: Sequence[Operation], stream: TokenStream) -> Sent:
        services, key = self._services, None
        texts, refused = json_payloads(operations)
        if refused:
            return Sent("refused", outcomes=refused)  # the others are claimed again without them
        if self.each:
            # A receiver takes the token's stream for the partition of a single operation.
            key, body, stream = operations[0].op_id, texts[0], self._tenure.stream(operations[0].partition)
        else:
            body = request_body(operations, texts)
        try:
            reply = await write(
                services.http, self.endpoint, self._tenure, stream, services.events, body, len(operations),
                timeout=self._timeout, key=key, more=self._more,
            )  # fmt: skip
        except NoHeaders as error:
            return Sent("busy", str(error))
        if self.each:
            reply, single = read_single(reply, operations[0])
            return _sent(reply, single, complaint(self.endpoint, reply, "an operation"))
        outcomes = read_outcomes(reply.results, operations) if reply.kind == "answered" else {}
        if outcomes is None:
            return Sent("unknown", "the results are not those of the operations sent")
        return _sent(reply, outcomes, complaint(self.endpoint, reply, "a batch"))

    async def _more(self) -> Mapping[str, str]:
        return await ask(self._headers, self._services.clock, self._timeout, "headers")


class OwnTransport:
    """By the app's own sender."""

    def __init__(self, services: QueueServices, context: LeaderContext, sender: Sender, options: QueueOptions) -> None:
        self.each = bool(getattr(sender, "each", False))
        self._services = services
        self._tenure = context.tenure
        self._sender = sender
        self._options = options

    async def ready(self, stream: TokenStream) -> Sent | None:
        return None

    def doubt(self) -> None:
        pass

    async def send(self, operations: Sequence[Operation], stream: TokenStream) -> Sent:
        sending = Sending(
            self._tenure,
            stream.next_token(),
            attempt=1 + max(operation.attempts for operation in operations),
            timeout=self._options.send_timeout,
            endpoint=self._options.endpoint,
            operation_id=operations[0].op_id if len(operations) == 1 else None,
        )
        try:
            outcomes = await by_deadline(
                self._services.clock, sending.timeout, _called(self._sender, operations, sending)
            )
            return Sent("answered", outcomes=matched(outcomes, operations))
        except LeadershipLost as lost:
            self._tenure.ensure()
            return Sent("failed", _named(lost))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._tenure.ended is not None or task is None or task.cancelling():
                raise
            return Sent("failed", "the sender was cancelled")
        except Exception as error:
            # Whatever it says: an error's text never decides over an operation.
            self._tenure.ensure()
            return Sent("failed", _named(error))


async def _called(sender: Sender, operations: Sequence[Operation], sending: Sending) -> Sequence[Outcome]:
    return await sender.send(operations, sending)


def _sent(reply: Reply, outcomes: Mapping[str, Outcome], wrong: str) -> Sent:
    assert reply.kind not in ("stale", "overtaken"), "write() handles refusals"
    kind: Literal["answered", "busy", "denied", "unfit", "unknown"] = reply.kind  # type: ignore[assignment]
    return Sent(
        kind, answered(reply), outcomes, reply.retry_after, reply.retention, reply.silent,
        complaint=wrong, lasting=reply.lasting, offline=reply.offline,
    )  # fmt: skip


def _named(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__
