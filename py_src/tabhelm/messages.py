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

from tabhelm.json_text import TooDeep, is_number, loads
from tabhelm.names import MAX_NAME

WIRE_VERSION = 1
MAX_TEXT = 262_144
"""Longer texts are not even parsed."""
MAX_BEACON = 8_388_608
"""A beacon may be longer: twenty tabs that stand for a hundred resources each have more to say. A leader whose beacons
nobody reads would be taken for one that hangs, and be robbed."""
MAX_NEXT = 120.0
"""Seconds. Who announced a later beat would be believed to lead for as long after it has gone."""
MAX_ITEMS = 1000
MAX_RESOURCES = 10_000
"""So many a tab may stand for, and an engine may lead."""
MAX_WORD = 200
"""Characters of a leader's health and progress: they go out with every beat."""
Progress = str | int | float | bool | None
"""What a leader last said of how far it is."""


@dataclass(frozen=True, slots=True)
class TabNote:
    """One tab, in its engine's own words. ``age`` is the seconds since it joined; ``stands`` the resources it would
    lead. ``scores`` are its own words on how good a leader it is, ``turns`` the epochs in which it last led: for some
    of those resources, where they say anything."""

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
    scores: tuple[tuple[str, float], ...] = ()
    turns: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LeaderNote:
    """One tenure. ``resource`` is the token resource; ``domain`` is empty where nothing is fenced.

    ``authority`` is what decided; ``health`` and ``progress`` are the leader's own words, ``progress_age`` the seconds
    since it last made some. Older engines say none of these four.
    """

    resource: str
    tab: str
    connection: str
    domain: str
    epoch: int
    age: float
    authority: str = ""
    health: str = ""
    progress: Progress = None
    progress_age: float | None = None


@dataclass(frozen=True, slots=True)
class Beacon:
    """``next`` is when the sender will speak again at the latest, in seconds: late is judged by its own word.

    ``build`` is the bundle's build id; empty where there is none, or from older engines.
    """

    sender: str
    number: int
    next: float
    tabs: tuple[TabNote, ...]
    leaders: tuple[LeaderNote, ...]
    build: str = ""


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


@dataclass(frozen=True, slots=True)
class LockAsk:
    """Who holds this lock, and for how long? ``number`` comes back in the answers."""

    sender: str
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class LockAnswer:
    """A tab of the sender holds the lock that the engine ``asked`` wanted to know of."""

    sender: str
    asked: str
    number: int
    name: str
    tab: str
    age: float
    shared: bool


@dataclass(frozen=True, slots=True)
class FlightEnd:
    """What one tab did for all that wait for it is done. ``value`` is JSON text (``None``: it gave nothing), unless
    ``error`` (its name, empty where it went well), ``reason`` (its message) and ``code`` say how it failed."""

    sender: str
    name: str
    value: str | None
    error: str
    reason: str
    code: str


@dataclass(frozen=True, slots=True)
class Request:
    """A tab of the sender asks a tenure: that of the connection ``leader`` under ``epoch``.

    ``call`` is drawn once for each question, whoever it is put to; ``args`` is JSON text; ``left`` the seconds that the
    asking tab still waits, 0 when it has given up. ``fresh``: no other tenure can have begun with it.
    """

    sender: str
    call: str
    resource: str
    leader: str
    epoch: int
    method: str
    args: str
    tab: str
    connection: str
    version: str
    capabilities: tuple[str, ...]
    key: str
    left: float
    fresh: bool


@dataclass(frozen=True, slots=True)
class Accepted:
    """The tenure has the question. ``begun``: its handler runs; ``idempotent``: it may run again under the next."""

    sender: str
    to: str
    call: str
    leader: str
    epoch: int
    begun: bool
    idempotent: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a question. ``value`` is JSON text.

    ``outcome``: ``value``, ``error`` (of the handler: ``{name, message, code}``), ``refused``, ``no-handler``,
    ``busy`` (texts), ``over`` (the tenure ended; the handler had begun) or ``declined`` (it ended before).
    """

    sender: str
    to: str
    call: str
    leader: str
    epoch: int
    outcome: str
    value: str


@dataclass(frozen=True, slots=True)
class StateNote:
    """What a tenure published last. ``value`` is JSON text; without it, the note only says which number it was."""

    sender: str
    resource: str
    leader: str
    tab: str
    epoch: int
    number: int
    value: str


@dataclass(frozen=True, slots=True)
class Resync:
    """The sender wants to hear what this tenure published last."""

    sender: str
    resource: str
    leader: str


OUTCOMES = frozenset({"value", "error", "refused", "no-handler", "busy", "over", "declined"})
MAX_BODY = 100_000
"""Characters of one value as JSON in ASCII: quoted inside a message it is at most twice as long."""

Questioning = Request | Accepted | Reply | StateNote | Resync
Message = Questioning | Beacon | Nudge | LeaderSigns | Ask | LockAsk | LockAnswer | FlightEnd


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
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise Ignored("unknown-kind")
    try:
        return reader(value)
    except (KeyError, TypeError, ValueError):
        raise Ignored("malformed") from None


_BEACONS = tuple(f'{{"tabhelm":{WIRE_VERSION},"kind":"{kind}",' for kind in ("beacon", "leaders"))
"""How they begin."""


def _beacon(value: Mapping[str, Any]) -> Beacon:
    return Beacon(
        sender=_text(value["sender"]),
        number=_whole(value["number"]),
        next=_seconds(value["next"], most=MAX_NEXT),
        tabs=tuple(_tab(item) for item in _list(value["tabs"])),
        leaders=tuple(_leader(item) for item in _list(value["leaders"], MAX_RESOURCES)),
        build=_text(value.get("build", ""), empty=True),
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
        stands=tuple(_text(item) for item in _list(value["stands"], MAX_RESOURCES)),
        age=_seconds(value["age"]),
        scores=tuple((_text(key), _number(item)) for key, item in _list(value.get("scores", []), MAX_RESOURCES)),
        turns=tuple((_text(key), _whole(item)) for key, item in _list(value.get("turns", []), MAX_RESOURCES)),
    )


def _leader(value: Mapping[str, Any]) -> LeaderNote:
    return LeaderNote(
        resource=_text(value["resource"]),
        tab=_text(value["tab"]),
        connection=_text(value["connection"]),
        domain=_text(value["domain"], empty=True),
        epoch=_whole(value["epoch"]),
        age=_seconds(value["age"]),
        authority=_text(value.get("authority", ""), empty=True),
        health=_word(value.get("health", "")),
        progress=_progress(value.get("progress")),
        progress_age=None if value.get("progress_age") is None else _seconds(value["progress_age"]),
    )


def _nudge(value: Mapping[str, Any]) -> Nudge:
    return Nudge(_text(value["sender"]), _text(value["queue"]), _flag(value.get("resume", False)))


def _signs(value: Mapping[str, Any]) -> LeaderSigns:
    return LeaderSigns(
        sender=_text(value["sender"]),
        number=_whole(value["number"]),
        next=_seconds(value["next"], most=MAX_NEXT),
        leaders=tuple(_leader(item) for item in _list(value["leaders"], MAX_RESOURCES)),
    )


def _ask(value: Mapping[str, Any]) -> Ask:
    return Ask(_text(value["sender"]), _text(value["asked"]))


def _lock_ask(value: Mapping[str, Any]) -> LockAsk:
    return LockAsk(_text(value["sender"]), _whole(value["number"]), _text(value["name"]))


def _lock_answer(value: Mapping[str, Any]) -> LockAnswer:
    return LockAnswer(
        sender=_text(value["sender"]),
        asked=_text(value["asked"]),
        number=_whole(value["number"]),
        name=_text(value["name"]),
        tab=_text(value["tab"]),
        age=_seconds(value["age"]),
        shared=_flag(value["shared"]),
    )


def _flight_end(value: Mapping[str, Any]) -> FlightEnd:
    end = FlightEnd(
        sender=_text(value["sender"]),
        name=_text(value["name"]),
        value=value["value"],
        error=_text(value["error"], empty=True),
        reason=value["reason"],
        code=_text(value["code"], empty=True),
    )
    if not isinstance(end.reason, str) or not isinstance(end.value, str | None):
        raise ValueError("text")
    if end.value is not None:
        loads(end.value)
    return end


def _request(value: Mapping[str, Any]) -> Request:
    return Request(
        sender=_text(value["sender"]),
        call=_text(value["call"]),
        resource=_text(value["resource"]),
        leader=_text(value["leader"]),
        epoch=_whole(value["epoch"]),
        method=_text(value["method"]),
        args=_body(value["args"]),
        tab=_text(value["tab"]),
        connection=_text(value["connection"]),
        version=_text(value["version"], empty=True),
        capabilities=tuple(_text(item) for item in _list(value["capabilities"])),
        key=_text(value["key"]),
        left=_seconds(value["left"]),
        fresh=_flag(value["fresh"]),
    )


def _accepted(value: Mapping[str, Any]) -> Accepted:
    return Accepted(
        sender=_text(value["sender"]),
        to=_text(value["to"]),
        call=_text(value["call"]),
        leader=_text(value["leader"]),
        epoch=_whole(value["epoch"]),
        begun=_flag(value["begun"]),
        idempotent=_flag(value["idempotent"]),
    )


def _reply(value: Mapping[str, Any]) -> Reply:
    if value["outcome"] not in OUTCOMES:
        raise ValueError("outcome")
    return Reply(
        sender=_text(value["sender"]),
        to=_text(value["to"]),
        call=_text(value["call"]),
        leader=_text(value["leader"]),
        epoch=_whole(value["epoch"]),
        outcome=value["outcome"],
        value=_body(value["value"]),
    )


def _state(value: Mapping[str, Any]) -> StateNote:
    return StateNote(
        sender=_text(value["sender"]),
        resource=_text(value["resource"]),
        leader=_text(value["leader"]),
        tab=_text(value["tab"]),
        epoch=_whole(value["epoch"]),
        number=_whole(value["number"]),
        value=_body(value["value"], empty=True),
    )


def _resync(value: Mapping[str, Any]) -> Resync:
    return Resync(_text(value["sender"]), _text(value["resource"]), _text(value["leader"]))


def _body(value: object, *, empty: bool = False) -> str:
    """JSON text, checked here: whoever reads it later may rely on it."""
    if not isinstance(value, str) or len(value) > MAX_BODY:
        raise ValueError("body")
    if value or not empty:
        loads(value)
    return value


_KINDS: dict[type[Message], str] = {
    Request: "request",
    Accepted: "accepted",
    Reply: "reply",
    StateNote: "state",
    Resync: "resync",
    Beacon: "beacon",
    Nudge: "nudge",
    LeaderSigns: "leaders",
    Ask: "ask",
    LockAsk: "lock-ask",
    LockAnswer: "lock-answer",
    FlightEnd: "flight-end",
}
_READERS: dict[str, Callable[[Mapping[str, Any]], Message]] = {
    "request": _request,
    "accepted": _accepted,
    "reply": _reply,
    "state": _state,
    "resync": _resync,
    "beacon": _beacon,
    "nudge": _nudge,
    "leaders": _signs,
    "ask": _ask,
    "lock-ask": _lock_ask,
    "lock-answer": _lock_answer,
    "flight-end": _flight_end,
}


def _text(value: object, *, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME or not (value or empty):
        raise ValueError("text")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_WORD:
        raise ValueError("word")
    return value


def _progress(value: object) -> Progress:
    if isinstance(value, str):
        return _word(value)
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise ValueError("progress")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError("whole number")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("flag")
    return value


def _number(value: object) -> float:
    if not is_number(value):
        raise ValueError("number")
    return float(value)


def _seconds(value: object, *, most: float = math.inf) -> float:
    if not is_number(value) or not 0 <= value <= most:
        raise ValueError("seconds")
    return float(value)


def _list(value: object, most: int = MAX_ITEMS) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("list")
    return value
