"""Tokens in HTTP: ``Fencing-Token`` and ``Idempotency-Key`` as Structured Fields (RFC 9651).

``Fencing-Token: "regcase:offline-queue:mutations";domain="…";epoch=7;stream="case-42";seq=12;owner="…"``

This module runs in the page too, where a library would cost boot time, so it holds the small part of RFC 9651 that an
Item with parameters needs. It is tested against a complete implementation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tabhelm.errors import MalformedToken
from tabhelm.fencing.token import FencingToken

MAX_HEADER = 8192
_STRING = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?![0-9.])")
_OTHER = re.compile(
    r"-?[0-9]{1,12}\.[0-9]{1,3}(?![0-9.])"  # decimal
    r"|[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"  # token
    r"|\?[01]"  # boolean
    r"|:[A-Za-z0-9+/=]*:"  # byte sequence
    r"|@-?[0-9]{1,15}(?![0-9.])"  # date
)
_DISPLAY = re.compile(r'%"((?:[\x20\x21\x23\x24\x26-\x7e]|%[0-9a-f]{2})*)"')

BareItem = str | int | None


def token_header(token: FencingToken) -> str:
    """The value of ``Fencing-Token``."""
    return (
        f"{_quoted(token.resource)};domain={_quoted(token.domain)};epoch={token.epoch}"
        f";stream={_quoted(token.stream)};seq={token.seq};owner={_quoted(token.owner_id)}"
    )


def token_fields(token: FencingToken) -> dict[str, str | int]:
    """The token as JSON, as pages and guards in JavaScript have it."""
    return {
        "domain": token.domain,
        "resource": token.resource,
        "epoch": token.epoch,
        "stream": token.stream,
        "seq": token.seq,
        "owner": token.owner_id,
    }


def read_token_fields(said: Mapping[str, Any]) -> FencingToken:
    """The token of what ``token_fields`` made.

    Raises:
        KeyError, MalformedToken: it is none.
    """
    return FencingToken(said["domain"], said["resource"], said["epoch"], said["stream"], said["seq"], said["owner"])


def parse_token_header(text: str) -> FencingToken:
    """Read the value of ``Fencing-Token``. Unknown parameters are ignored; of a repeated one the last counts.

    Raises:
        MalformedToken: the value is no such item; names what is wrong.
    """
    resource, parameters = _parse_item("Fencing-Token", text)
    if not isinstance(resource, str):
        raise MalformedToken(f"Fencing-Token {_shown(text)}: the item must be a string, the resource")

    def string(name: str) -> str:
        value = parameters.get(name)
        if not isinstance(value, str):
            raise MalformedToken(f"Fencing-Token {_shown(text)}: parameter {name!r} must be a string")
        return value

    def integer(name: str) -> int:
        value = parameters.get(name)
        if not isinstance(value, int):
            raise MalformedToken(f"Fencing-Token {_shown(text)}: parameter {name!r} must be an integer")
        return value

    return FencingToken(
        domain=string("domain"),
        resource=resource,
        epoch=integer("epoch"),
        stream=string("stream"),
        seq=integer("seq"),
        owner_id=string("owner"),
    )


def idempotency_key_header(key: str) -> str:
    """The value of ``Idempotency-Key``.

    Raises:
        MalformedToken: the key is empty or holds characters that a header cannot carry.
    """
    if not key or not key.isascii() or not key.isprintable():
        raise MalformedToken(f"idempotency key {_shown(key)} is not valid: printable ASCII is expected")
    return _quoted(key)


def parse_idempotency_key(text: str) -> str:
    """Read the value of ``Idempotency-Key``.

    Raises:
        MalformedToken: the value is no structured string.
    """
    key, _ = _parse_item("Idempotency-Key", text)
    if not isinstance(key, str) or not key:
        raise MalformedToken(f"Idempotency-Key {_shown(text)}: a non-empty quoted string is expected")
    return key


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _parse_item(header: str, text: str) -> tuple[BareItem, dict[str, BareItem]]:
    if len(text) > MAX_HEADER:
        raise MalformedToken(f"{header} is {len(text)} characters long; at most {MAX_HEADER} are read")
    text = text.strip(" ")
    item, at = _bare_item(header, text, 0)
    parameters: dict[str, BareItem] = {}
    while at < len(text):
        key = _KEY.match(text, _skip_spaces(text, at + 1)) if text[at] == ";" else None
        if key is None:
            raise MalformedToken(f"{header} {_shown(text)}: a parameter is expected at character {at}")
        at = key.end()
        value: BareItem = None
        if text[at : at + 1] == "=":
            value, at = _bare_item(header, text, at + 1)
        parameters[key.group()] = value
    return item, parameters


def _bare_item(header: str, text: str, at: int) -> tuple[BareItem, int]:
    """A string or an integer as such; anything else that RFC 9651 allows as ``None``: known to nobody here."""
    if match := _STRING.match(text, at):
        return re.sub(r"\\(.)", r"\1", match.group(1)), match.end()
    if match := _NUMBER.match(text, at):
        return int(match.group()), match.end()
    if (match := _OTHER.match(text, at)) or ((match := _DISPLAY.match(text, at)) and _is_utf8(match[1])):
        return None, match.end()
    raise MalformedToken(f"{header} {_shown(text)}: a value is expected at character {at}")


def _is_utf8(quoted: str) -> bool:
    """Whether the bytes of a display string are UTF-8."""
    try:
        re.sub("%(..)", lambda match: chr(int(match[1], 16)), quoted).encode("latin-1").decode()
    except UnicodeDecodeError:
        return False
    return True


def _skip_spaces(text: str, at: int) -> int:
    while text[at : at + 1] == " ":
        at += 1
    return at


def _shown(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 120 else shown[:117] + "..."
