"""Payloads that are no JSON, from Python: copied when they are enqueued, with a digest of what they are.

The digest is over a canonical walk: two values have the same one if they are equal and of the same types, whatever the
order in which a dictionary was filled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

from tabhelm.errors import InvalidPayload

_LARGEST = 2**53 - 1
_DEEPEST = 100
"""Levels: what walks and converts a value goes down with it, and has no more stack than the browser gives."""


def cloned(value: Any) -> tuple[Any, str, int]:
    """A copy of a payload, its digest (hexadecimal), and about how many bytes it takes.

    It may hold ``None``, booleans, numbers, text, ``bytes`` and the like, lists, tuples (which become lists), and
    dictionaries with texts as keys.

    Raises:
        InvalidPayload: something else is inside; the message names the place, as in ``payload.items[3].at``.
    """
    walk = _Walk()
    copy = walk.copy("payload", value, 0)
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
        raise InvalidPayload(
            f"{path} is of type {type(value).__name__}, which cannot be stored: convert it, or leave it out"
        )

    def say(self, kind: str, data: bytes = b"") -> None:
        """One step of the walk: what it is, how long, and what is in it."""
        self.hash.update(f"{kind}{len(data)}:".encode())
        self.hash.update(data)
        self.size += max(1, len(data))

    def plain(self, path: str, value: Any, depth: int) -> Any:
        self.say("n" if value is None else "b", b"" if value is None else str(value).encode())
        return value

    def text(self, path: str, value: str, depth: int) -> str:
        self.say("s", value.encode("utf-8", "surrogatepass"))
        return value

    def number(self, path: str, value: int | float, depth: int) -> int | float:
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise InvalidPayload(f"{path} is {value}, beyond the whole numbers that JavaScript keeps exactly")
        same = int(value) if math.isfinite(value) and value == int(value) else value
        self.say("d", repr(same).encode())
        self.size += 7
        return value

    def buffer(self, path: str, value: bytes | bytearray | memoryview, depth: int) -> bytes:
        copy = bytes(value)
        self.say("y", copy)
        return copy

    def array(self, path: str, value: Any, depth: int) -> list[Any]:
        self.say(f"a{len(value)}")
        return [self.copy(f"{path}[{at}]", item, depth + 1) for at, item in enumerate(value)]

    def mapping(self, path: str, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        for key in value:
            if not isinstance(key, str):
                raise InvalidPayload(f"{path} has the key {key!r:.60} of type {type(key).__name__}: keys must be texts")
        self.say(f"o{len(value)}")
        copies: dict[str, Any] = {}
        for key in sorted(value):
            self.say("k", key.encode("utf-8", "surrogatepass"))
            place = f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"
            copies[key] = self.copy(place, value[key], depth + 1)
        return {key: copies[key] for key in value}


_TAKERS: tuple[tuple[Any, Callable[[_Walk, str, Any, int], Any]], ...] = (
    ((bool, type(None)), _Walk.plain),
    (str, _Walk.text),
    ((int, float), _Walk.number),
    ((bytes, bytearray, memoryview), _Walk.buffer),
    ((list, tuple), _Walk.array),
    (dict, _Walk.mapping),
)
