"""Who is here, who leads what, what changed: hints that engines tell each other unasked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tabhelm.messages.fields import MAX_RESOURCES, Progress, flag, items, number, progress, seconds, text, whole, word

MAX_NEXT = 120.0
"""Seconds. Who announced a later beat would be believed to lead for as long after it has gone."""


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


def _beacon(value: Mapping[str, Any]) -> Beacon:
    return Beacon(
        sender=text(value["sender"]),
        number=whole(value["number"]),
        next=seconds(value["next"], most=MAX_NEXT),
        tabs=tuple(_tab(item) for item in items(value["tabs"])),
        leaders=tuple(_leader(item) for item in items(value["leaders"], MAX_RESOURCES)),
        build=text(value.get("build", ""), empty=True),
    )


def _tab(value: Mapping[str, Any]) -> TabNote:
    return TabNote(
        tab=text(value["tab"]),
        connection=text(value["connection"]),
        generation=whole(value["generation"]),
        lifecycle=text(value["lifecycle"]),
        visible=flag(value["visible"]),
        online=flag(value["online"]),
        version=text(value["version"], empty=True),
        capabilities=tuple(text(item) for item in items(value["capabilities"])),
        stands=tuple(text(item) for item in items(value["stands"], MAX_RESOURCES)),
        age=seconds(value["age"]),
        scores=tuple((text(key), number(item)) for key, item in items(value.get("scores", []), MAX_RESOURCES)),
        turns=tuple((text(key), whole(item)) for key, item in items(value.get("turns", []), MAX_RESOURCES)),
    )


def _leader(value: Mapping[str, Any]) -> LeaderNote:
    return LeaderNote(
        resource=text(value["resource"]),
        tab=text(value["tab"]),
        connection=text(value["connection"]),
        domain=text(value["domain"], empty=True),
        epoch=whole(value["epoch"]),
        age=seconds(value["age"]),
        authority=text(value.get("authority", ""), empty=True),
        health=word(value.get("health", "")),
        progress=progress(value.get("progress")),
        progress_age=None if value.get("progress_age") is None else seconds(value["progress_age"]),
    )


def _signs(value: Mapping[str, Any]) -> LeaderSigns:
    return LeaderSigns(
        sender=text(value["sender"]),
        number=whole(value["number"]),
        next=seconds(value["next"], most=MAX_NEXT),
        leaders=tuple(_leader(item) for item in items(value["leaders"], MAX_RESOURCES)),
    )


def _ask(value: Mapping[str, Any]) -> Ask:
    return Ask(text(value["sender"]), text(value["asked"]))


def _nudge(value: Mapping[str, Any]) -> Nudge:
    return Nudge(text(value["sender"]), text(value["queue"]), flag(value.get("resume", False)))


Telling = Beacon | LeaderSigns | Ask | Nudge
KINDS: dict[str, tuple[type[Telling], Callable[[Mapping[str, Any]], Telling]]] = {
    "beacon": (Beacon, _beacon),
    "leaders": (LeaderSigns, _signs),
    "ask": (Ask, _ask),
    "nudge": (Nudge, _nudge),
}
