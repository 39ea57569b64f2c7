"""The requests and answers of a fenced receiver: parsing, and problems (RFC 9457)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tabhelm.errors import MalformedToken
from tabhelm.fencing.http_form import parse_idempotency_key, parse_token_header
from tabhelm.fencing.refusal import STALE_TOKEN
from tabhelm.fencing.token import FencingToken, HighWater
from tabhelm.json_text import TooDeep, loads

MALFORMED = "urn:tabhelm:malformed"
KEY_REUSED = "urn:tabhelm:key-reused"
REJECTED = "urn:tabhelm:rejected"
RETRY = "urn:tabhelm:retry"
BUSY = "urn:tabhelm:busy"
FAILED = "urn:tabhelm:failed"
PLAIN = "about:blank"
MAX_TEXT = 512
"""Characters in an operation id or a partition."""


class Problem(Exception):
    """An answer of ``application/problem+json``. ``more`` are extension members, ``headers`` go with it."""

    def __init__(
        self,
        status: int,
        kind: str,
        title: str,
        detail: str = "",
        *,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail or title)
        self.status = status
        self.kind = kind
        self.headers = dict(headers or {})
        self.body = {
            "type": kind,
            "title": title,
            "status": status,
            **({"detail": detail} if detail else {}),
            **(more or {}),
        }


def malformed(detail: str) -> Problem:
    """400: the request is not of the contract."""
    return Problem(400, MALFORMED, "The request cannot be read", detail)


def stale(token: FencingToken, high_water: HighWater, kind: str) -> Problem:
    """409: nothing was applied. ``overtaken`` is at the token's own epoch and owner: a new token will do."""
    why = "a later token of the same owner was seen first" if kind == "overtaken" else "a newer owner has been seen"
    seen = {"epoch": high_water.epoch, "seq": high_water.seq, "owner": high_water.owner_id}
    detail = f"{token.resource}: epoch {token.epoch}, seq {token.seq} of {token.owner_id} is refused: {why}"
    return Problem(409, STALE_TOKEN, "The fencing token is not above the high water", detail, more={"high_water": seen})


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a request. ``digest`` tells payloads apart."""

    op_id: str
    partition: str
    payload: Any
    digest: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """A readable request: a token and its operations (none: the barrier). ``single``: it came with a key."""

    token: FencingToken
    operations: tuple[Operation, ...]
    single: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one operation. ``after`` in seconds, for ``retry``."""

    op_id: str
    status: str
    detail: str = ""
    after: float | None = None
    key_reused: bool = field(default=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"op_id": self.op_id, "status": self.status}
        if self.detail:
            shown["detail"] = self.detail
        if self.after is not None:
            shown["retry_after"] = self.after
        return shown


def read_token(header: str | None) -> FencingToken:
    """The token of a request.

    Raises:
        Problem: 400, it is missing or cannot be read.
    """
    if header is None:
        raise malformed("the Fencing-Token header is missing")
    try:
        return parse_token_header(header)
    except MalformedToken as error:
        raise malformed(str(error)) from error


def read_write(token: FencingToken, idempotency_key: str | None, body: bytes, max_operations: int) -> Write:
    """The operations of a request: its body with an idempotency key, else a batch.

    A single operation's partition is its token's stream: that is the order it belongs to.

    Raises:
        Problem: 400, it is not of the contract; 413, too many operations.
    """
    value = _decode(body)
    if idempotency_key is not None:
        try:
            op_id = parse_idempotency_key(idempotency_key)
        except MalformedToken as error:
            raise malformed(str(error)) from error
        return Write(token, (_operation(op_id, token.stream, value, "Idempotency-Key"),), single=True)
    if not isinstance(value, dict) or not isinstance(value.get("operations"), list):
        raise malformed('the body must be {"operations": [...]}, or the request must carry an Idempotency-Key')
    items = value["operations"]
    if len(items) > max_operations:
        raise Problem(
            413, PLAIN, "Too many operations", f"{len(items)} operations in one batch; at most {max_operations}"
        )
    operations = []
    for index, item in enumerate(items):
        where = f"operations[{index}]"
        if not isinstance(item, dict) or "payload" not in item:
            raise malformed(f"{where} must be an object with op_id, partition and payload")
        operations.append(_operation(item.get("op_id"), item.get("partition"), item["payload"], where))
    return Write(token, tuple(operations), single=False)


def _operation(op_id: object, partition: object, payload: object, where: str) -> Operation:
    for name, text in (("op_id", op_id), ("partition", partition)):
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT or not storable(text):
            raise malformed(f"{where}: {name} {ascii(text)[:80]} is not valid: a text of 1 to {MAX_TEXT} characters")
    assert isinstance(op_id, str) and isinstance(partition, str)
    try:
        canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # NaN, or a number like 1e999: Python reads them, but they are no JSON for others
        raise malformed(f"{where}: the payload holds a number that is none or too large") from error
    return Operation(op_id, partition, payload, hashlib.sha256(canonical.encode()).digest())


def storable(text: str) -> bool:
    """Neither NUL nor half of a surrogate pair, which JSON can spell but databases cannot store."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _decode(body: bytes) -> Any:
    try:
        # A depth of its own: how deep Python can read or write depends on how deep its caller stands already.
        return loads(body.decode())
    except TooDeep as error:
        raise malformed(f"the body cannot be read: {error}") from error
    except ValueError as error:
        raise malformed(f"the body is not JSON: {error}") from error
