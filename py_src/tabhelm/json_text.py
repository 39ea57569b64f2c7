"""JSON that somebody else wrote: a page, a receiver, a stranger on the channel.

Under Pyodide the interpreter shares the browser's stack, which overflows at some 5,000 nested brackets, before
CPython's own limit. No ``except`` catches that: the interpreter is dead, and with it the engine of all tabs.
"""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any, TypeGuard

from tabhelm.errors import NotCloneable

MAX_DEPTH = 500
"""Brackets within brackets; a tenth of what the smallest stack seen can hold."""
# A text without an end is one to the end: else the next look would begin at each of its escaped quotes, and 40 kB of
# a stranger would take a minute.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class TooDeep(ValueError):
    """More than ``MAX_DEPTH`` brackets within brackets."""


def loads(text: str) -> Any:
    """``json.loads``, but never deeper than ``MAX_DEPTH``.

    Raises:
        TooDeep: it is nested deeper.
        ValueError: it is no JSON.
    """
    if deeper_than(text, MAX_DEPTH):
        raise TooDeep(f"JSON nested deeper than {MAX_DEPTH} levels")
    return json.loads(text)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number, and no boolean. JSON may hold whole numbers that no float can: they are none."""
    most = sys.float_info.max
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -most <= value <= most


def deeper_than(text: str, levels: int) -> bool:
    """Whether JSON text has more than so many brackets within brackets. Reads it without recursion."""
    if text.count("[") + text.count("{") <= levels:  # quick, and mostly enough to know
        return False
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > levels:
                return True
        elif token[0] in "]}":
            depth -= 1
    return False


def exact_text(what: str, value: object) -> str:
    """JSON text of a value that another tab will read exactly so: ``None``, booleans, finite numbers, texts, lists,
    tuples, and dictionaries with texts as keys. ``what`` names the value in errors.

    Raises:
        NotCloneable: JSON cannot hold it without loss; the message names the place, as in ``result.items[3].at``.
    """
    _check_exact(what, value, 0)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _check_exact(path: str, value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise NotCloneable(f"{path[:200]}… is nested deeper than {MAX_DEPTH} levels (or holds itself)")
    if value is None or isinstance(value, (bool, int)):
        return
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise NotCloneable(f"{path} holds half a character (a lone surrogate), which no message can carry")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise NotCloneable(f"{path} is {value!r}, which JSON cannot hold: convert it, or leave it out")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_exact(f"{path}[{index}]", item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotCloneable(f"{path} has the key {key!r:.60} of type {type(key).__name__}: keys must be texts")
            name = f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]"
            _check_exact(path + name, item, depth + 1)
    else:
        raise NotCloneable(
            f"{path} is of type {type(value).__name__}, which JSON cannot hold: convert it, or leave it out"
        )
