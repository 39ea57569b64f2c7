"""One message as text, and back. Nothing that arrives is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from tabhelm.json_text import TooDeep, loads
from tabhelm.messages import beacons, locks, questions
from tabhelm.messages.beacons import Telling
from tabhelm.messages.locks import Locking
from tabhelm.messages.questions import Questioning

WIRE_VERSION = 1
MAX_TEXT = 262_144
"""Longer texts are not even parsed."""
MAX_BEACON = 8_388_608
"""A beacon may be longer: twenty tabs that stand for a hundred resources each have more to say. A leader whose beacons
nobody reads would be taken for one that hangs, and be robbed."""

Message = Telling | Locking | Questioning
_KINDS: dict[str, tuple[type[Message], Callable[[Mapping[str, Any]], Message]]] = {
    **beacons.KINDS,
    **locks.KINDS,
    **questions.KINDS,
}
_NAMES: dict[type[Message], str] = {type_: kind for kind, (type_, _) in _KINDS.items()}
_BEACONS = tuple(f'{{"tabhelm":{WIRE_VERSION},"kind":"{kind}",' for kind in ("beacon", "leaders"))
"""How they begin."""


class Ignored(ValueError):
    """A message that is not for us. ``reason`` is one short word, to count by."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def encode(message: Message) -> str:
    """The text of a message."""
    return json.dumps(
        {"tabhelm": WIRE_VERSION, "kind": _NAMES[type(message)], **asdict(message)}, separators=(",", ":")
    )


def decode(data: object) -> Message:
    """Read whatever arrived on the channel.

    Raises:
        Ignored: it is not a message of ours; ``reason`` is ``not-text``, ``too-long``, ``too-deep``, ``not-json``,
            ``foreign``, ``version``, ``unknown-kind`` or ``malformed``.
    """
    if not isinstance(data, str):
        raise Ignored("not-text")
    if len(data) > (MAX_BEACON if data.startswith(_BEACONS) else MAX_TEXT):
        raise Ignored("too-long")
    try:
        value = loads(data)
    except TooDeep:
        raise Ignored("too-deep") from None
    except ValueError:
        raise Ignored("not-json") from None
    if not isinstance(value, dict) or "tabhelm" not in value:
        raise Ignored("foreign")
    if value["tabhelm"] != WIRE_VERSION:
        raise Ignored("version")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise Ignored("unknown-kind")
    _, reader = _KINDS[kind]
    try:
        return reader(value)
    except (KeyError, TypeError, ValueError):
        raise Ignored("malformed") from None
