"""What tabs ask the leader of a resource, what becomes of it, and what the leader publishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tabhelm.json_text import loads
from tabhelm.messages.fields import flag, items, seconds, text, whole

OUTCOMES = frozenset({"value", "error", "refused", "no-handler", "busy", "over", "declined"})
MAX_BODY = 100_000
"""Characters of one value as JSON in ASCII: quoted inside a message it is at most twice as long."""


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


def _request(value: Mapping[str, Any]) -> Request:
    return Request(
        sender=text(value["sender"]),
        call=text(value["call"]),
        resource=text(value["resource"]),
        leader=text(value["leader"]),
        epoch=whole(value["epoch"]),
        method=text(value["method"]),
        args=_body(value["args"]),
        tab=text(value["tab"]),
        connection=text(value["connection"]),
        version=text(value["version"], empty=True),
        capabilities=tuple(text(item) for item in items(value["capabilities"])),
        key=text(value["key"]),
        left=seconds(value["left"]),
        fresh=flag(value["fresh"]),
    )


def _accepted(value: Mapping[str, Any]) -> Accepted:
    return Accepted(
        sender=text(value["sender"]),
        to=text(value["to"]),
        call=text(value["call"]),
        leader=text(value["leader"]),
        epoch=whole(value["epoch"]),
        begun=flag(value["begun"]),
        idempotent=flag(value["idempotent"]),
    )


def _reply(value: Mapping[str, Any]) -> Reply:
    if value["outcome"] not in OUTCOMES:
        raise ValueError("outcome")
    return Reply(
        sender=text(value["sender"]),
        to=text(value["to"]),
        call=text(value["call"]),
        leader=text(value["leader"]),
        epoch=whole(value["epoch"]),
        outcome=value["outcome"],
        value=_body(value["value"]),
    )


def _state(value: Mapping[str, Any]) -> StateNote:
    return StateNote(
        sender=text(value["sender"]),
        resource=text(value["resource"]),
        leader=text(value["leader"]),
        tab=text(value["tab"]),
        epoch=whole(value["epoch"]),
        number=whole(value["number"]),
        value=_body(value["value"], empty=True),
    )


def _resync(value: Mapping[str, Any]) -> Resync:
    return Resync(text(value["sender"]), text(value["resource"]), text(value["leader"]))


def _body(value: object, *, empty: bool = False) -> str:
    """JSON text, checked here: whoever reads it later may rely on it."""
    if not isinstance(value, str) or len(value) > MAX_BODY:
        raise ValueError("body")
    if value or not empty:
        loads(value)
    return value


Questioning = Request | Accepted | Reply | StateNote | Resync
KINDS: dict[str, tuple[type[Questioning], Callable[[Mapping[str, Any]], Questioning]]] = {
    "request": (Request, _request),
    "accepted": (Accepted, _accepted),
    "reply": (Reply, _reply),
    "state": (StateNote, _state),
    "resync": (Resync, _resync),
}
