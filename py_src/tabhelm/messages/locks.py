"""Who holds a lock, and what came of work that one tab did for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tabhelm.json_text import loads
from tabhelm.messages.fields import flag, seconds, text, whole


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


def _lock_ask(value: Mapping[str, Any]) -> LockAsk:
    return LockAsk(text(value["sender"]), whole(value["number"]), text(value["name"]))


def _lock_answer(value: Mapping[str, Any]) -> LockAnswer:
    return LockAnswer(
        sender=text(value["sender"]),
        asked=text(value["asked"]),
        number=whole(value["number"]),
        name=text(value["name"]),
        tab=text(value["tab"]),
        age=seconds(value["age"]),
        shared=flag(value["shared"]),
    )


def _flight_end(value: Mapping[str, Any]) -> FlightEnd:
    end = FlightEnd(
        sender=text(value["sender"]),
        name=text(value["name"]),
        value=value["value"],
        error=text(value["error"], empty=True),
        reason=value["reason"],
        code=text(value["code"], empty=True),
    )
    if not isinstance(end.reason, str) or not isinstance(end.value, str | None):
        raise ValueError("text")
    if end.value is not None:
        loads(end.value)
    return end


Locking = LockAsk | LockAnswer | FlightEnd
KINDS: dict[str, tuple[type[Locking], Callable[[Mapping[str, Any]], Locking]]] = {
    "lock-ask": (LockAsk, _lock_ask),
    "lock-answer": (LockAnswer, _lock_answer),
    "flight-end": (FlightEnd, _flight_end),
}
