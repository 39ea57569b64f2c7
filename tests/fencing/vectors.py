"""Vectors that the guards of both languages obey, in simulated storage, in Node.js and in real browsers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tabhelm.fencing.token import FencingToken

TEXT = Path(__file__).with_name("guard_vectors.json").read_text(encoding="utf-8")
_ALL = json.loads(TEXT)
SEQUENCES: list[dict[str, Any]] = _ALL["sequences"]
"""``{name, rule, steps: [{token, verdict, marks | high_water}]}``: what one store answers, step by step."""
MALFORMED_TOKENS: list[dict[str, Any]] = _ALL["malformed_tokens"]
MALFORMED_RECORDS: list[dict[str, Any]] = _ALL["malformed_records"]


def token(fields: dict[str, Any]) -> FencingToken:
    """A token from its form in JavaScript."""
    return FencingToken(**{("owner_id" if key == "owner" else key): value for key, value in fields.items()})
