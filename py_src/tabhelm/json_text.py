"""JSON that somebody else wrote: a page, a receiver, a stranger on the channel.

Under Pyodide the interpreter shares the browser's stack, which overflows at some 5,000 nested brackets, before
CPython's own limit. No ``except`` catches that: the interpreter is dead, and with it the engine of all tabs.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 500
"""Brackets within brackets; a tenth of what the smallest stack seen can hold."""
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


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
