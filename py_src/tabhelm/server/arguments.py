"""Limits and times as the applications and stores are given them: checked when they are made, not when they bite."""

from __future__ import annotations

import math
from typing import TypeVar

N = TypeVar("N", int, float)


def checked(name: str, value: N, least: float, unit: str) -> N:
    """The value.

    Raises:
        ValueError: it is below ``least``, infinite, or no number.
    """
    if not least <= value < math.inf:
        raise ValueError(f"{name} {value!r} is not valid: at least {least:g} {unit}")
    return value
