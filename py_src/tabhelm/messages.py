"""What goes over the BroadcastChannel between engines: one JSON text a message, and nothing is trusted.

A ``Beacon`` says which tabs an engine has and what they lead, ``LeaderSigns`` which queues they lead (for engines of
other protocols, which share the queues); a ``Nudge`` says that a queue changed, an ``Ask`` wants one engine to speak.
All are hints. Anything else on the channel (other versions, other libraries, hostile or broken pages) is counted and
ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tabhelm.json_text import TooDeep, loads
from tabhelm.names import MAX_NAME

WIRE_VERSION = 1
MAX_TEXT = 262_144
"""Longer texts are not even parsed: 262,144 characters hold hundreds of tabs."""
MAX_NEXT = 120.0
"""Seconds. Who announced a later beat would be believed to lead for as long after it has gone."""
MAX_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class TabNote:
    """One tab, in its engine's own words. ``age`` is the seconds since it joined; ``stands`` the resources it would
    lead."""

    tab: str
    connection: str
    generation: int
    lifecycle: str
    visible: bool
    online: bool
    version: str
    capabilities: tuple[str, ...]
    stands: tuple[str, ...]
    age: float


@dataclass(frozen=True, slots=True)
class LeaderNote:
    """One tenure. ``resource`` is the token resource; ``domain`` is empty where nothing is fenced."""

    resource: str
    tab: str
    connection: str
    domain: str
    epoch: int
    age: float


@dataclass(frozen=True, slots=True)
class Beacon:
    """``next`` is when the sender will speak again at the latest, in seconds: late is judged by its own word."""

    sender: str
    number: int
    next: float
    tabs: tuple[TabNote, ...]
    leaders: tuple[LeaderNote, ...]


@dataclass(frozen=True, slots=True)
class Nudge:
    """Something changed in the queue with this token resource. ``resume``: go on if it is paused."""

    sender: str
    queue: str
    resume: bool = False


@dataclass(frozen=True, slots=True)
class LeaderSigns:
    """Which queues an engine's tabs lead. ``number`` and ``next`` as in its beacons."""

    sender: str
    number: int
    next: float
    leaders: tuple[LeaderNote, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """The engine ``asked`` shall say who it has, if it is alive."""

    sender: str
    asked: str


Message = Beacon | Nudge | LeaderSigns | Ask


class Ignored(ValueError):
    """A message that is not for us. ``reason`` is one short word, to count by."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def encode(message: Message) -> str:
    """The text of a message."""
    return json.dumps(
        {"tabhelm": WIRE_VERSION, "kind": _KINDS[type(message)], **asdict(message)}, separators=(",", ":")
    )


def decode(data: object) -> Message:
    """Read whatever arrived on the channel.

    Raises:
        Ignored: it is not a message of ours; ``reason`` is ``not-text``, ``too-long``, ``too-deep``, ``not-json``,
            ``foreign``, ``version``, ``unknown-kind`` or ``malformed``.
    """
    if not isinstance(data, str):
        raise Ignored("not-text")
    if len(data) > MAX_TEXT:
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
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise Ignored("unknown-kind")
    try:
        return reader(value)
    except (KeyError, TypeError, ValueError):
        raise Ignored("malformed") from None


def _beacon(value: Mapping[str, Any]) -> Beacon:
    return Beacon(
        sender=_text(value["sender"]),
        number=_whole(value["number"]),
        next=_seconds(value["next"], most=MAX_NEXT),
        tabs=tuple(_tab(item) for item in _list(value["tabs"])),
        leaders=tuple(_leader(item) for item in _list(value["leaders"])),
    )


def _tab(value: Mapping[str, Any]) -> TabNote:
    return TabNote(
        tab=_text(value["tab"]),
        connection=_text(value["connection"]),
        generation=_whole(value["generation"]),
        lifecycle=_text(value["lifecycle"]),
        visible=_flag(value["visible"]),
        online=_flag(value["online"]),
        version=_text(value["version"], empty=True),
        capabilities=tuple(_text(item) for item in _list(value["capabilities"])),
        stands=tuple(_text(item) for item in _list(value["stands"])),
        age=_seconds(value["age"]),
    )


def _leader(value: Mapping[str, Any]) -> LeaderNote:
    return LeaderNote(
        resource=_text(value["resource"]),
        tab=_text(value["tab"]),
        connection=_text(value["connection"]),
        domain=_text(value["domain"], empty=True),
        epoch=_whole(value["epoch"]),
        age=_seconds(value["age"]),
    )


def _nudge(value: Mapping[str, Any]) -> Nudge:
    return Nudge(_text(value["sender"]), _text(value["queue"]), _flag(value.get("resume", False)))


def _signs(value: Mapping[str, Any]) -> LeaderSigns:
    return LeaderSigns(
        sender=_text(value["sender"]),
        number=_whole(value["number"]),
        next=_seconds(value["next"], most=MAX_NEXT),
        leaders=tuple(_leader(item) for item in _list(value["leaders"])),
    )


def _ask(value: Mapping[str, Any]) -> Ask:
    return Ask(_text(value["sender"]), _text(value["asked"]))


_KINDS: dict[type[Message], str] = {Beacon: "beacon", Nudge: "nudge", LeaderSigns: "leaders", Ask: "ask"}
_READERS: dict[str, Callable[[Mapping[str, Any]], Message]] = {
    "beacon": _beacon,
    "nudge": _nudge,
    "leaders": _signs,
    "ask": _ask,
}


def _text(value: object, *, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME or not (value or empty):
        raise ValueError("text")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError("whole number")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("flag")
    return value


def _seconds(value: object, *, most: float = math.inf) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= value <= most:  # type: ignore[operator]
        raise ValueError("seconds")
    return float(value)  # type: ignore[arg-type]


def _list(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise ValueError("list")
    return value
