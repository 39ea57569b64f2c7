"""One lane's operations as a request, and what the answer says of each.

The request is ``{"operations": [{"op_id", "partition", "payload"}]}``, the answer ``{"results": [{"op_id", "status",
"detail"?}]}`` in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from tabhelm.fencing.reply import retry_after
from tabhelm.queue.records import Operation, Outcome

SEND_TIMEOUT = 30.0
_STATUS: dict[str, Literal["committed", "duplicate", "rejected", "retry", "skipped"]] = {
    "committed": "committed",
    "duplicate": "committed",
    "rejected": "rejected",
    "retry": "retry",
    "skipped": "skipped",
}


def request_body(operations: Sequence[Operation]) -> str:
    """The JSON text of a batch. Payloads are JSON text already and go in as they are."""
    items = (
        f'{{"op_id":{json.dumps(item.op_id)},"partition":{json.dumps(item.partition)},"payload":{item.payload}}}'
        for item in operations
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
