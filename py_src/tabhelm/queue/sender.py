"""One lane's operations as a request, and what the answer says of each.

A batch is ``{"operations": [{"op_id", "partition", "payload"}]}``, its answer ``{"results": [{"op_id", "status",
"detail"?}]}`` in the same order. A single operation is its payload alone, under an ``Idempotency-Key``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from tabhelm.errors import NotCloneable
from tabhelm.fencing.reply import Reply, retry_after
from tabhelm.json_text import deeper_than, exact_text
from tabhelm.queue.records import MAX_PAYLOAD_DEPTH, Operation, Outcome

_STATUS: dict[str, Literal["committed", "duplicate", "rejected", "retry", "skipped"]] = {
    "committed": "committed",
    "duplicate": "duplicate",
    "rejected": "rejected",
    "retry": "retry",
    "skipped": "skipped",
}
_RETRY = "urn:tabhelm:retry"


def json_payloads(operations: Sequence[Operation]) -> tuple[list[str], dict[str, Outcome]]:
    """The JSON text of each payload, and those rejected that JSON cannot hold: they were enqueued for a sender of the
    app's own."""
    texts: list[str] = []
    refused: dict[str, Outcome] = {}
    for operation in operations:
        try:
            texts.append(_json(operation))
        except NotCloneable as error:
            detail = f"cannot be sent over HTTP, where a payload is JSON: {error}"
            refused[operation.op_id] = Outcome(operation.op_id, "rejected", detail[:500])
    return texts, refused


def _json(operation: Operation) -> str:
    if operation.value is None:
        return operation.payload
    text = exact_text("payload", operation.content)
    if deeper_than(text, MAX_PAYLOAD_DEPTH):
        raise NotCloneable(f"payload is nested deeper than {MAX_PAYLOAD_DEPTH} levels: no receiver would read it")
    return text


def request_body(operations: Sequence[Operation], payloads: Sequence[str]) -> str:
    """The JSON text of a batch with these payloads, which are JSON text already and go in as they are."""
    items = (
        f'{{"op_id":{json.dumps(item.op_id)},"partition":{json.dumps(item.partition)},"payload":{payload}}}'
        for item, payload in zip(operations, payloads, strict=True)
    )
    return f'{{"operations":[{",".join(items)}]}}'


def read_outcomes(results: Sequence[Any], operations: Sequence[Operation]) -> dict[str, Outcome] | None:
    """What became of each operation; ``None`` if these are not the results of these operations."""
    try:
        outcomes: dict[str, Outcome] = {}
        for operation, result in zip(operations, results, strict=True):
            if result["op_id"] != operation.op_id:
                return None
            detail = result.get("detail", "")
            detail = detail if isinstance(detail, str) else json.dumps(detail)
            wait = retry_after(result.get("retry_after"))
            outcomes[operation.op_id] = Outcome(operation.op_id, _STATUS[result["status"]], detail[:500], wait)
        return outcomes
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def read_single(reply: Reply, operation: Operation) -> tuple[Reply, Mapping[str, Outcome]]:
    """What the answer to a single operation says: as that of a batch of one, with what it says of the operation."""
    op_id = operation.op_id
    if reply.kind == "answered":
        outcomes = read_outcomes(reply.results, [operation])
        if outcomes is None:
            return replace(reply, kind="unknown", detail="the result is not that of the operation sent"), {}
        return reply, outcomes
    if reply.kind == "busy" and reply.problem == _RETRY:
        # The receiver works; this operation is to come again later, and holds back nothing but its partition.
        why = reply.said or reply.detail
        return replace(reply, kind="answered"), {op_id: Outcome(op_id, "retry", why, reply.retry_after)}
    return reply, {}
