"""Send one lane's operations to a fenced receiver, and believe only an answer that follows the contract.

The request is ``{"operations": [{"op_id", "partition", "payload"}]}``, the answer ``{"results": [{"op_id", "status",
"detail"?}]}`` in the same order. Anything else (HTML, a redirect to a login page, other ids) is *unknown*, never
success.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tabhelm.errors import Unreachable
from tabhelm.fencing.http_form import token_header
from tabhelm.fencing.refusal import overtaken, refused_high_water
from tabhelm.fencing.token import FencingToken, HighWater
from tabhelm.json_text import loads
from tabhelm.ports import Http, HttpAnswer
from tabhelm.queue.records import Operation, Outcome

SEND_TIMEOUT = 30.0
MAX_RETRY_AFTER = 3600.0
_STATUS: dict[str, Literal["committed", "rejected", "retry", "skipped"]] = {
    "committed": "committed",
    "duplicate": "committed",
    "rejected": "rejected",
    "retry": "retry",
    "skipped": "skipped",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request came to.

    ``answered``: ``outcomes`` hold. ``stale``/``overtaken``: refused, nothing applied. ``busy``: not now. ``denied``:
    signed out or not allowed. ``unfit``: the receiver will not take this request at all. ``unknown``: cannot be told.
    """

    kind: Literal["answered", "stale", "overtaken", "busy", "denied", "unfit", "unknown"]
    detail: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    high_water: HighWater | None = None
    retry_after: float | None = None


def request_body(operations: Sequence[Operation]) -> str:
    """The JSON text of a batch. Payloads are JSON text already and go in as they are."""
    items = (
        f'{{"op_id":{json.dumps(item.op_id)},"partition":{json.dumps(item.partition)},"payload":{item.payload}}}'
        for item in operations
    )
    return f'{{"operations":[{",".join(items)}]}}'


async def send_batch(
    http: Http, url: str, token: FencingToken, operations: Sequence[Operation], *, timeout: float = SEND_TIMEOUT
) -> Reply:
    """Send and interpret. Never raises for what a server or network does; cancelling aborts the request."""
    headers = {"Fencing-Token": token_header(token), "Content-Type": "application/json", "Accept": "application/json"}
    try:
        answer = await http.send("POST", url, headers=headers, body=request_body(operations), timeout=timeout)
    except Unreachable as failure:
        return Reply("unknown", str(failure))
    return interpret(answer, token, operations)


def interpret(answer: HttpAnswer, token: FencingToken, operations: Sequence[Operation]) -> Reply:
    """What an answer means for these operations."""
    shown = f"HTTP {answer.status}"
    if answer.redirected:
        return Reply("unknown", f"{shown} after a redirect")
    if answer.status == 200:
        outcomes = _outcomes(answer.body, operations)
        if outcomes is None:
            return Reply("unknown", f"{shown} whose body is not the contract's")
        return Reply("answered", outcomes=outcomes)
    if (high_water := refused_high_water(answer)) is not None:
        return Reply("overtaken" if overtaken(token, high_water) else "stale", shown, high_water=high_water)
    if answer.status in (401, 403):
        return Reply("denied", shown)
    if answer.status in (429, 503):
        return Reply("busy", shown, retry_after=retry_after(answer.headers.get("retry-after")))
    if answer.status == 413 or (answer.status in (400, 422) and _problem_type(answer.body).startswith("urn:tabhelm:")):
        return Reply("unfit", f"{shown} {_problem_type(answer.body)}".strip())
    return Reply("unknown", shown, retry_after=retry_after(answer.headers.get("retry-after")))


def _outcomes(body: str, operations: Sequence[Operation]) -> dict[str, Outcome] | None:
    try:
        results = loads(body)["results"]
        if len(results) != len(operations):
            return None
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


def _problem_type(body: str) -> str:
    try:
        value = loads(body)
    except ValueError:
        return ""
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else ""


def retry_after(value: Any) -> float | None:
    """Seconds of a ``Retry-After`` in its number form, at most an hour; ``None`` if there is none we can use.

    The date form is not used: it would compare the server's clock with ours.
    """
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return min(seconds, MAX_RETRY_AFTER) if seconds >= 0 else None
