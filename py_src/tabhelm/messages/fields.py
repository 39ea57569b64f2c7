"""What the fields of a message may hold. Each reader raises ``ValueError`` for anything else."""

from __future__ import annotations

import math
from typing import Any

from tabhelm.json_text import is_number
from tabhelm.names import MAX_NAME

MAX_ITEMS = 1000
MAX_RESOURCES = 10_000
"""So many a tab may stand for, and an engine may lead."""
MAX_WORD = 200
"""Characters of a leader's health and progress: they go out with every beat."""
Progress = str | int | float | bool | None
"""What a leader last said of how far it is."""


def text(value: object, *, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME or not (value or empty):
        raise ValueError("text")
    return value


def word(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_WORD:
        raise ValueError("word")
    return value


def progress(value: object) -> Progress:
    if isinstance(value, str):
        return word(value)
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise ValueError("progress")
    return value


def whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError("whole number")
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("flag")
    return value


def number(value: object) -> float:
    if not is_number(value):
        raise ValueError("number")
    return float(value)


def seconds(value: object, *, most: float = math.inf) -> float:
    if not is_number(value) or not 0 <= value <= most:
        raise ValueError("seconds")
    return float(value)


def items(value: object, most: int = MAX_ITEMS) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("list")
    return value
