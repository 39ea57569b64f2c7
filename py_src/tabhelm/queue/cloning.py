"""Payloads that are no JSON, from Python: copied when they are enqueued, with a digest of what they are.

The digest is over a canonical walk, the very one of ``web/payloads.mjs``: equal values have the same one, whatever the
order in which a dictionary was filled, and whether Python or a page's JavaScript enqueues them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Any

from tabhelm.errors import InvalidPayload

_LARGEST = 2**53 - 1
_DEEPEST = 100
"""Levels: what walks and converts a value goes down with it, and has no more stack than the browser gives."""
_PLAIN = (bool, type(None), str, int, float)
_HALF = re.compile("[\ud800-\udfff]")


def cloned(value: Any, what: str = "payload") -> tuple[Any, str, int]:
    """A copy of a payload, its digest (hexadecimal), and about how many bytes it takes.

    It may hold ``None``, booleans, numbers, text, ``bytes`` and the like, lists, tuples (which become lists), sets of
    texts and numbers, dictionaries with texts as keys, and JavaScript's Blobs and Files. Those are not read: they are
    the same if they have the same size, type, name and time.

    Raises:
        InvalidPayload: something else is inside; the message names the place, as in ``payload.items[3].at``.
    """
    walk = _Walk()
    copy = walk.copy(what, value, 0)
    return copy, walk.hash.hexdigest(), walk.size


class _Walk:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.size = 0

    def copy(self, path: str, value: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise InvalidPayload(f"{path[:200]}… is nested deeper than {_DEEPEST} levels (or holds itself)")
        for types, take in _TAKERS:
            if isinstance(value, types):
                return take(self, path, value, depth)
        if hasattr(value, "js_id"):
            return self.javascript(path, value)
        raise InvalidPayload(
            f"{path} is of type {type(value).__name__}, which cannot be stored: convert it, or leave it out"
        )

    def say(self, text: str, data: bytes = b"") -> None:
        """One step of the walk."""
        written = text.encode()
        self.hash.update(written)
        self.hash.update(data)
        self.size += len(written) + len(data)

    def plain(self, path: str, value: bool | None, depth: int) -> Any:
        self.say("null;" if value is None else "true;" if value else "false;")
        return value

    def text(self, path: str, value: str, depth: int) -> str:
        self.say(_quoted(value))
        return value

    def number(self, path: str, value: int | float, depth: int) -> int | float:
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise InvalidPayload(f"{path} is {value}, beyond the whole numbers that JavaScript keeps exactly")
        self.say(f"{_number(value)};")
        return value

    def buffer(self, path: str, value: bytes | bytearray | memoryview, depth: int) -> bytes:
        copy = bytes(value)
        self.say(f"Uint8Array {len(copy)};", copy)
        return copy

    def array(self, path: str, value: Any, depth: int) -> list[Any]:
        self.say(f"Array({len(value)};")
        copies = []
        for at, item in enumerate(value):
            self.say(f'"{at}"')
            copies.append(self.copy(f"{path}[{at}]", item, depth + 1))
        self.say(")")
        return copies

    def unordered(self, path: str, value: Any, depth: int) -> set[Any]:
        for item in value:
            if not isinstance(item, _PLAIN):  # it would come back as a list, say, of which no set can be made
                raise InvalidPayload(f"{path} is a set that holds {item!r:.60}: only texts and numbers can be in one")
        self.say("Set(")
        for item in sorted(value, key=lambda item: (isinstance(item, str), str(item))):
            self.copy(path, item, depth + 1)
        self.say(")")
        return set(value)

    def mapping(self, path: str, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        for key in value:
            if not isinstance(key, str):
                raise InvalidPayload(f"{path} has the key {key!r:.60} of type {type(key).__name__}: keys must be texts")
        self.say("Object(")
        copies: dict[str, Any] = {}
        for key in sorted(value, key=_code_units):
            self.say(_quoted(key))
            place = f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"
            copies[key] = self.copy(place, value[key], depth + 1)
        self.say(")")
        return {key: copies[key] for key in value}

    def javascript(self, path: str, value: Any) -> Any:
        """An object of JavaScript's. Only what nobody can change stays what it was at the call."""
        kind = str(value)
        if kind not in ("[object Blob]", "[object File]"):
            raise InvalidPayload(
                f"{path} is JavaScript's {kind:.60}: of those only a Blob or File is stored as it is. Convert it (by "
                "to_py() or to_bytes()), or leave it out"
            )
        facts = [value.type, *((value.name, value.lastModified) if kind == "[object File]" else ())]
        self.say(f"unread {kind} {value.size} {json.dumps(facts)};")
        self.size += int(value.size)
        return value


def _quoted(text: str) -> str:
    """As ``JSON.stringify`` writes it."""
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(text, ensure_ascii=False))


def _code_units(text: str) -> bytes:
    """By which JavaScript sorts."""
    return text.encode("utf-16-be", "surrogatepass")


def _number(value: int | float) -> str:
    """As JavaScript writes it: the same digits as Python's, with other words, zeros and exponents."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1, value) < 0 else ""
    mantissa, _, exponent = repr(abs(float(value))).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(digits) - len(fraction) + int(exponent or 0)
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0"
    if not -6 < point <= 21:
        shown = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
        return f"{sign}{shown}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    digits = digits.ljust(point, "0")
    return f"{sign}{digits[:point]}" + (f".{digits[point:]}" if len(digits) > point else "")


_TAKERS: tuple[tuple[Any, Callable[[_Walk, str, Any, int], Any]], ...] = (
    ((bool, type(None)), _Walk.plain),
    (str, _Walk.text),
    ((int, float), _Walk.number),
    ((bytes, bytearray, memoryview), _Walk.buffer),
    ((list, tuple), _Walk.array),
    ((set, frozenset), _Walk.unordered),
    (dict, _Walk.mapping),
)
