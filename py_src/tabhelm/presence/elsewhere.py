"""What engines of other protocols lead. They share the queues with us, but we do not hear their beacons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tabhelm.messages import MAX_NEXT, LeaderSigns
from tabhelm.presence.news import News
from tabhelm.presence.others import EXPIRED_BEATS
from tabhelm.presence.signs import Signs


@dataclass(slots=True)
class _Leads:
    number: int
    at: float
    resources: frozenset[str]
    next: float
    told: bool = False
    """That it fell silent."""

    def silent(self, now: float) -> bool:
        return now - self.at > EXPIRED_BEATS * self.next


class Elsewhere:
    """Only whether somebody lives. Nobody tells us when such an engine dies: it falls silent."""

    def __init__(self, engine_id: str, signs: Signs, news: News) -> None:
        self._engine_id = engine_id
        self._signs = signs
        self._news = news
        self._engines: dict[str, _Leads] = {}

    def heard(self, signs: LeaderSigns, now: float) -> frozenset[str]:
        """Take in what an engine of perhaps another protocol leads. Returns what it leads, or led before; nothing if it
        is no news."""
        known = self._engines.get(signs.sender)
        if signs.sender == self._engine_id or (known is not None and signs.number <= known.number):
            return frozenset()
        led = frozenset(note.resource for note in signs.leaders)
        self._signs.lives(led, signs.next, now, signs.sender)
        if known is not None:
            self._signs.went(known.resources - led, now, signs.sender)
        self._engines[signs.sender] = _Leads(signs.number, now, led, signs.next)
        return led if known is None else led | known.resources

    def tick(self, now: float, gap: float) -> None:
        """Forgive the time in which we stood still, forget who is long gone, tell who fell silent."""
        for sender, engine in list(self._engines.items()):
            engine.at = min(now, engine.at + gap)
            if now - engine.at > 2 * MAX_NEXT:
                del self._engines[sender]
            fell_silent = engine.silent(now) and not engine.told
            if fell_silent:
                engine.told = True
            if fell_silent or gap:  # whoever looked before this found out that we slept has taken it for dead
                self._news.tell(engine.resources)

    def acting(self, now: float) -> Iterator[str]:
        """What is led there now."""
        return (
            resource for engine in self._engines.values() if not engine.silent(now) for resource in engine.resources
        )

    def leads(self, resource: str, now: float) -> bool:
        """Whether this is led there now."""
        return any(resource in engine.resources and not engine.silent(now) for engine in self._engines.values())
