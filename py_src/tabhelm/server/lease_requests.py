"""The requests and answers of a lease service: reading, and problems (RFC 9457)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from tabhelm.fencing.http_form import token_header
from tabhelm.fencing.token import MAX_NUMBER, FencingToken
from tabhelm.json_text import loads
from tabhelm.names import MAX_NAME
from tabhelm.server.asgi import Scope
from tabhelm.server.contract import Problem, malformed
from tabhelm.server.lease_rules import Ask, Granted, Held
from tabhelm.server.requests import Answer

HELD = "urn:tabhelm:lease-held"
EXHAUSTED = "urn:tabhelm:epochs-exhausted"
TOO_MANY = "urn:tabhelm:too-many-leases"
STREAM = "lease"
"""The stream of the tokens that the service gives: it is their one issuer."""
_RESOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?::[A-Za-z0-9][A-Za-z0-9._-]*)*\Z")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a candidate asks for. ``wait`` in seconds."""

    ask: Ask
    wait: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be asked for, in seconds."""

    min_ttl: float
    max_ttl: float
    max_wait: float


def read_resource(scope: Scope) -> str:
    """The last segment of the path.

    Raises:
        Problem: 400, it is no name.
    """
    path, raw = scope["path"], scope.get("raw_path")
    # As it was written: a "%2F" inside it is part of a wrong name, and not the end of a segment.
    name: str = unquote(raw.rpartition(b"/")[2].decode("latin-1")) if raw else path.rpartition("/")[2]
    if len(name) > MAX_NAME or not _RESOURCE.match(name):
        raise malformed(
            f"resource {ascii(name)[:80]} is not valid: names of letters, digits, '.', '_' and '-', joined by ':'"
        )
    return name


def read_candidate(scope: Scope) -> str:
    """Whose lease is given back.

    Raises:
        Problem: 400, it is missing or came twice.
    """
    query: bytes = scope.get("query_string", b"")
    given = parse_qs(query.decode("latin-1")).get("candidate", [])
    if len(given) != 1:
        raise malformed("DELETE …?candidate=… is expected: whose lease is given back")
    return given[0]


def read_asked(body: bytes, limits: Limits) -> Asked:
    """The body of a POST.

    Raises:
        Problem: 400, it is not of the contract.
    """
    try:
        value = loads(body.decode())
    except ValueError as error:
        raise malformed(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise malformed('the body must be {"candidate": text, "ttl_ms": number}')
    ttl = _number(value, "ttl_ms", limits.min_ttl * 1000, limits.max_ttl * 1000)
    wait = _number(value, "wait_ms", 0, 3_600_000, 0)
    above = _number(value, "above", 0, MAX_NUMBER - 2, 0)
    if above != int(above):
        raise malformed(f"above {value['above']!r} is not valid: a whole number is expected")
    candidate = value.get("candidate")
    if not isinstance(candidate, str):
        raise malformed(f"candidate {ascii(candidate)[:80]} is not valid: a text is expected")
    renew = value.get("renew", False)
    if not isinstance(renew, bool):
        raise malformed(f"renew {ascii(renew)[:40]} is not valid: true or false is expected")
    # Whoever renews has it, or has lost it: nothing to wait for.
    patience = 0.0 if renew else min(wait / 1000, limits.max_wait)
    return Asked(Ask(candidate, ttl / 1000, int(above), renew), patience)


def _number(value: dict[str, Any], name: str, least: float, most: float, default: float | None = None) -> float:
    given = value.get(name, default)
    if not isinstance(given, int | float) or isinstance(given, bool) or not least <= given <= most:
        raise malformed(f"{name} {ascii(given)[:40]} is not valid: a number of {least:.15g} to {most:.15g} is expected")
    return float(given)


def granted(domain: str, resource: str, outcome: Granted) -> Answer:
    """200: the token, in the body and as a header."""
    record = outcome.record
    assert record.holder is not None
    token = FencingToken(domain, resource, record.epoch, STREAM, record.seq, record.holder)
    shown = {
        "domain": token.domain,
        "resource": token.resource,
        "epoch": token.epoch,
        "stream": token.stream,
        "seq": token.seq,
        "owner": token.owner_id,
    }
    body = {"token": shown, "expires_in_ms": math.floor(record.ttl * 1000)}
    return body, {"fencing-token": token_header(token)}


def held(outcome: Held) -> Problem:
    """409: it is somebody else's, or nobody's and was only to be renewed."""
    more = {"holder": outcome.holder, "expires_in_ms": math.ceil(outcome.left * 1000)}
    title = "Somebody else holds this lease" if outcome.holder else "Nobody holds this lease"
    return Problem(409, HELD, title, more=more)
