"""Senders: whatever takes claimed operations somewhere and says what became of them.

A sender of the app's own is given a fencing token with each attempt, drawn for it alone: what it writes to should check
it (docs/guards.md), since a leader that lost its leadership a moment ago does not know it yet.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from tabhelm.fencing.http_form import idempotency_key_header, token_header
from tabhelm.fencing.token import FencingToken
from tabhelm.leadership.tenure import Tenure
from tabhelm.queue.records import SAID, Operation, Outcome


class Sending:
    """One attempt: what a sender is given beside the operations."""

    def __init__(
        self,
        tenure: Tenure,
        token: FencingToken,
        *,
        attempt: int,
        timeout: float,
        endpoint: str | None = None,
        operation_id: str | None = None,
    ) -> None:
        self._tenure = tenure
        self._operation_id = operation_id
        self.token = token
        """Drawn for this attempt alone."""
        self.attempt = attempt
        """1 for the first; of a batch, the highest of its operations."""
        self.timeout = timeout
        """Seconds that it may take; then it is cancelled, and its outcome is unknown."""
        self.endpoint = endpoint
        """As the queue's options name it."""

    def headers(self) -> dict[str, str]:
        """HTTP headers: ``Fencing-Token``, and ``Idempotency-Key`` where it is one operation.

        Raises:
            LeadershipLost: leadership is over: send nothing.
        """
        self.ensure()
        headers = {"Fencing-Token": token_header(self.token)}
        if self._operation_id is not None:
            headers["Idempotency-Key"] = idempotency_key_header(self._operation_id)
        return headers

    def ensure(self) -> None:
        """Raise ``LeadershipLost`` if leadership is over."""
        self._tenure.ensure()


class Sender(Protocol):
    """Sends operations of one lane, in order, and says what became of each, in the same order.

    ``each``: it is given one operation at a time. It is cancelled when leadership ends. Raising is a failed attempt of
    unknown outcome, whatever the error says.
    """

    each: bool

    async def send(self, operations: Sequence[Operation], sending: Sending) -> Sequence[Outcome]: ...


Answer = Outcome | str | None
"""What a sender's function says of an operation: ``None`` or ``"committed"`` that it is done."""


class EachSender:
    """``async def function(operation, sending)``, called for one operation at a time."""

    each = True

    def __init__(self, function: Callable[[Operation, Sending], Answer | Awaitable[Answer]]) -> None:
        self._function = function

    async def send(self, operations: Sequence[Operation], sending: Sending) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for operation in operations:
            answer = self._function(operation, sending)
            outcomes.append(Outcome.of(await answer if inspect.isawaitable(answer) else answer))
        return outcomes


class BatchSender:
    """``async def function(operations, sending)``, called with a whole batch; gives an answer for each operation, in
    the same order, or ``None`` if all are committed. Operations of one partition must be applied in order."""

    each = False

    def __init__(self, function: Callable[[Sequence[Operation], Sending], Any]) -> None:
        self._function = function

    async def send(self, operations: Sequence[Operation], sending: Sending) -> Sequence[Outcome]:
        answer = self._function(operations, sending)
        answers = await answer if inspect.isawaitable(answer) else answer
        if answers is None:
            answers = [None] * len(operations)
        return [Outcome.of(each) for each in answers]


def as_sender(sender: Sender | Callable[..., Any]) -> Sender:
    """A sender of whatever the options take for one."""
    return sender if hasattr(sender, "send") else EachSender(sender)  # type: ignore[return-value]


def matched(outcomes: Sequence[Outcome], operations: Sequence[Operation]) -> dict[str, Outcome]:
    """Outcomes by operation id.

    Raises:
        ValueError: they are not those of these operations.
    """
    if len(outcomes) != len(operations):
        raise ValueError(f"{len(outcomes)} outcomes were returned for {len(operations)} operations")
    found: dict[str, Outcome] = {}
    for operation, outcome in zip(operations, outcomes, strict=True):
        if outcome.op_id not in ("", operation.op_id):
            raise ValueError(f"the outcome of {outcome.op_id!r} was returned in the place of {operation.op_id!r}")
        if outcome.status not in SAID:
            raise ValueError(f"{outcome.status!r} was returned for {operation.op_id!r}: expected is {', '.join(SAID)}")
        found[operation.op_id] = outcome.named(operation.op_id)
    return found
