"""Who is told of a change: whoever wants to hear of all, and whoever follows a resource that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tabhelm.messages import Beacon, TabNote


class News:
    """The callbacks of those who want to hear what changed."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], None]] = []
        self._followers: dict[str, list[Callable[[], None]]] = {}

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at every change; returns the way to stop."""
        return _added(self._subscribers, callback)

    def follow(self, resource: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when something changed that concerns who leads ``resource``, or who could; returns the way to stop.

        A hundred elections that all looked at each other's news would do ten thousand looks where a hundred are meant.
        """
        stop = _added(self._followers.setdefault(resource, []), callback)

        def stop_following() -> None:
            stop()
            if not self._followers.get(resource, True):
                del self._followers[resource]

        return stop_following

    def tell(self, resources: Iterable[str]) -> None:
        """Something changed that concerns these."""
        for callback in list(self._subscribers):
            callback()
        for resource in dict.fromkeys(resources):
            for callback in list(self._followers.get(resource, ())):
                callback()


def _added(callbacks: list[Callable[[], None]], callback: Callable[[], None]) -> Callable[[], None]:
    callbacks.append(callback)

    def stop() -> None:
        if callback in callbacks:
            callbacks.remove(callback)

    return stop


def concerned_by(beacon: Beacon) -> list[str]:
    """The resources that its tabs lead, or stand for."""
    return [*(note.resource for note in beacon.leaders), *(name for note in beacon.tabs for name in note.stands)]


def changed_between(before: Beacon, after: Beacon) -> set[str]:
    """The resources that are concerned by what is different in two beacons of one engine."""
    known = {note.connection: note for note in before.tabs}
    found: set[str] = set()
    for note in after.tabs:
        found |= changed_in(known.pop(note.connection, None), note)
    found.update(name for gone in known.values() for name in gone.stands)
    led = [{(note.resource, note.connection, note.epoch) for note in beacon.leaders} for beacon in (before, after)]
    return found | {resource for resource, *_ in led[0] ^ led[1]}


def changed_in(before: TabNote | None, after: TabNote) -> set[str]:
    """The resources that are concerned when a tab says the one, and then the other."""
    if before is None:
        return set(after.stands)
    if _general(before) != _general(after):
        return {*before.stands, *after.stands}
    return (
        set(before.stands) ^ set(after.stands)
        | {name for name, _ in set(before.scores) ^ set(after.scores)}
        | {name for name, _ in set(before.turns) ^ set(after.turns)}
    )


def _general(note: TabNote) -> TabNote:
    """What concerns everything that it stands for."""
    return replace(note, stands=(), scores=(), turns=(), age=0.0)
