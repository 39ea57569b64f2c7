"""Dead letters: how an operation dies, and what a person does with it.

A dead operation leaves its partition's line, which goes on with the next one. One that *blocks* leaves a stopper in its
place (its record without the payload), so that the claim which meets it goes no further.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from tabhelm.fencing.schema import DEAD_LETTERS, OPERATIONS, PARTITIONS
from tabhelm.json_text import loads
from tabhelm.ports import Transaction
from tabhelm.queue.partitions import ready
from tabhelm.queue.records import Operation
from tabhelm.queue.totals import Totals

_DEEPEST = 100
"""Levels that are exported of a value."""


def bury(tx: Transaction, totals: Totals, operation: Operation, reason: str, now: float, *, block: bool) -> Operation:
    """Make a live operation a dead letter. With ``block``, its partition's record is the caller's to write."""
    dead = operation.changed(reason=reason, died_at=now, blocks=block)
    tx.put(DEAD_LETTERS, dead.to_record())
    if block:
        tx.put(OPERATIONS, dead.changed(payload="", value=None, value_size=0).to_record())
    else:
        tx.delete(OPERATIONS, dead.place)
    totals.live -= 1
    totals.dead += 1
    totals.blocked += block
    return dead


def retry(tx: Transaction, totals: Totals, letters: Sequence[Operation]) -> None:
    """Put dead operations back into line, as if they had never been tried."""
    tx.put_all(OPERATIONS, [_fresh(letter).to_record() for letter in letters])
    tx.delete_all(DEAD_LETTERS, [[letter.queue, letter.ordinal] for letter in letters])
    tx.put_all(PARTITIONS, [ready(letter.queue, letter.partition) for letter in letters])
    totals.live += len(letters)
    totals.dead -= len(letters)
    totals.returned += len(letters)
    totals.blocked -= sum(letter.blocks for letter in letters)


def remove(tx: Transaction, totals: Totals, letters: Sequence[Operation]) -> None:
    """Forget dead operations."""
    tx.delete_all(DEAD_LETTERS, [[letter.queue, letter.ordinal] for letter in letters])
    blocking = [letter for letter in letters if letter.blocks]
    tx.delete_all(OPERATIONS, [letter.place for letter in blocking])
    tx.put_all(PARTITIONS, [ready(letter.queue, letter.partition) for letter in blocking])
    totals.dead -= len(letters)
    totals.blocked -= len(blocking)
    totals.bytes -= sum(letter.size for letter in letters)


def _fresh(letter: Operation) -> Operation:
    return letter.changed(
        attempts=0, not_before=0.0, delayed_at=0.0, unknown_since=0.0, reason="", died_at=0.0, blocks=False
    )


def export(letters: Sequence[Operation]) -> str:
    """JSON text of dead letters, for a support ticket or a file: ids, payloads, reasons, attempts, times (seconds since
    1970). Of a value that JSON cannot hold it says what it is."""
    return json.dumps([_exported(letter) for letter in letters], indent=2)


def _exported(letter: Operation) -> dict[str, Any]:
    return {
        "id": letter.op_id,
        "partition": letter.partition,
        "payload": loads(letter.payload) if letter.value is None else _shown(letter.value.python(), ()),
        "reason": letter.reason,
        "attempts": letter.attempts,
        "enqueued_at": letter.enqueued_at,
        "died_at": letter.died_at,
        "blocks": letter.blocks,
    }


def _shown(value: Any, above: tuple[int, ...]) -> Any:
    """A value that JSON can hold. One letter of a strange kind must not keep all others from being exported."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else f"({value})"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    if id(value) in above or len(above) >= _DEEPEST:
        return "(again)" if id(value) in above else "(deeper)"
    inside = (*above, id(value))
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(_shown(key, inside)): _shown(value[key], inside) for key in value}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_shown(item, inside) for item in value]
    return f"({type(value).__name__})"
