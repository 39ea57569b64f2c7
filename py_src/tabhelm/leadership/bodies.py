"""Values as they go between a leader and those who ask it, and how a tenure is named."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tabhelm.errors import NotCloneable
from tabhelm.json_text import exact_text
from tabhelm.messages import MAX_BODY


@dataclass(frozen=True, slots=True)
class Address:
    """One tenure, as others know it."""

    leader: str
    """Its connection."""
    epoch: int
    """As announced; 0 where nothing is fenced."""
    domain: str


def body(what: str, value: object) -> str:
    """A value as JSON text that fits into a message.

    Raises:
        NotCloneable: JSON cannot hold it, or it is too long; the message names the place, or the length.
    """
    text = exact_text(what, value)
    if not text.isascii():
        text = json.dumps(value, separators=(",", ":"))
    if len(text) > MAX_BODY:
        raise NotCloneable(f"{what} takes {len(text):,} characters as JSON in ASCII: at most {MAX_BODY:,} are allowed")
    return text
