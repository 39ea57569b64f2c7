"""Which version of an app is newer? Dotted numbers are compared, whatever follows them is not."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d{1,18}(?:\.\d{1,18})*")


def version_key(version: str) -> tuple[int, ...]:
    """To compare by: ``104.2`` < ``104.10``, ``1.0`` = ``1``; a version without numbers is older than all others."""
    found = _NUMBERS.search(version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0 and len(numbers) > 1:
        numbers.pop()
    return tuple(numbers)
