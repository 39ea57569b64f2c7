"""The other engines' tabs, and what they lead, as their beacons say.

Time is judged by the observer's own monotonic clock, between beacons that it heard itself, and an engine that is late
is late by its own word (``next``). When the observer itself stood still (frozen, suspended, throttled), everybody else
is given that time: silence that we could not have heard proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tabhelm.messages import Beacon, LeaderNote
from tabhelm.presence.infos import HeardEngine, LeaderInfo, Liveness, TabInfo, leader_info
from tabhelm.presence.news import News, changed_between, concerned_by
from tabhelm.presence.signs import Signs

SUSPECT_BEATS = 2.0
EXPIRED_BEATS = 4.0
REMOVED_AFTER = 60.0


@dataclass(slots=True)
class _Heard:
    beacon: Beacon
    at: float
    leads: dict[str, list[LeaderNote]]
    """Its leaders by resource."""
    tabs: list[TabInfo]
    """As of the beacon."""

    @classmethod
    def of(cls, beacon: Beacon, now: float) -> _Heard:
        leads: dict[str, list[LeaderNote]] = {}
        for note in beacon.leaders:
            leads.setdefault(note.resource, []).append(note)
        tabs = [TabInfo.of(note, beacon.sender, "alive", build=beacon.build) for note in beacon.tabs]
        return cls(beacon, now, leads, tabs)

    def liveness(self, now: float) -> Liveness:
        beats = (now - self.at) / max(self.beacon.next, 0.001)
        if beats > EXPIRED_BEATS:
            return "expired"
        return "suspect" if beats > SUSPECT_BEATS else "alive"

    def infos(self, now: float) -> list[TabInfo]:
        """Its tabs as of ``now``."""
        liveness, older = self.liveness(now), now - self.at
        return [replace(info, liveness=liveness, age=info.age + older) for info in self.tabs]

    def leader_infos(self, notes: list[LeaderNote] | tuple[LeaderNote, ...], now: float) -> Iterator[LeaderInfo]:
        """What these of its leaders are as of ``now``."""
        liveness, older = self.liveness(now), now - self.at
        return (leader_info(note, liveness, older, self.beacon.sender, self.beacon.tabs) for note in notes)


class OtherEngines:
    """What we heard of each, until it is dead or long gone."""

    def __init__(self, engine_id: str, signs: Signs, news: News) -> None:
        self._engine_id = engine_id
        self._signs = signs
        self._news = news
        self._engines: dict[str, _Heard] = {}
        self._judged: dict[str, Liveness] = {}

    # -- what changes -------------------------------------------------------------------------------------------------

    def heard(self, beacon: Beacon, now: float) -> bool:
        """Take in a beacon; true if its sender is new to us. One older than what we know of its sender is dropped."""
        known = self._engines.get(beacon.sender)
        if beacon.sender == self._engine_id or (known is not None and beacon.number <= known.beacon.number):
            return False
        led = _led(known.beacon) if known is not None else set()
        self._signs.lives(_led(beacon), beacon.next, now, beacon.sender)
        self._signs.went(led - _led(beacon), now, beacon.sender)
        if not beacon.tabs:
            if self._engines.pop(beacon.sender, None) is not None and known is not None:
                self._news.tell(concerned_by(known.beacon))
            return False
        self._engines[beacon.sender] = _Heard.of(beacon, now)
        if known is None:
            self._news.tell(concerned_by(beacon))
        elif (known.beacon.tabs, known.beacon.leaders) != (beacon.tabs, beacon.leaders):
            self._news.tell(changed_between(known.beacon, beacon))
        return known is None

    def forget(self, engine_id: str, now: float) -> None:
        """This engine is dead, and its tabs speak no more through it."""
        heard = self._engines.pop(engine_id, None)
        if heard is not None:
            self._signs.went(_led(heard.beacon), now, engine_id)
            self._news.tell(concerned_by(heard.beacon))

    def forget_all(self) -> None:
        """We heard nothing for a while, or shall not: begin anew with what is said from now on."""
        if self._engines:
            resources = [name for heard in self._engines.values() for name in concerned_by(heard.beacon)]
            self._engines.clear()
            self._news.tell(resources)

    def tick(self, now: float, gap: float) -> None:
        """Forgive the time in which we stood still, forget who is long gone, tell what changed."""
        if gap:
            for heard in self._engines.values():
                heard.at = min(now, heard.at + gap)
        known = dict(self._engines)
        for engine_id, heard in known.items():
            if now - heard.at > max(REMOVED_AFTER, EXPIRED_BEATS * heard.beacon.next):
                del self._engines[engine_id]
        judged = {engine_id: heard.liveness(now) for engine_id, heard in self._engines.items()}
        before, self._judged = self._judged, judged
        if judged != before or gap:  # whoever looked before this found out that we slept has taken them for dead
            others = [
                heard for engine_id, heard in known.items() if gap or before.get(engine_id) != judged.get(engine_id)
            ]
            self._news.tell([name for heard in others for name in concerned_by(heard.beacon)])

    # -- what is known ------------------------------------------------------------------------------------------------

    def engines(self) -> dict[str, bool]:
        """Those first that we have known for longest; whether each is said to lead something."""
        return {engine_id: bool(heard.beacon.leaders) for engine_id, heard in self._engines.items()}

    def heard_from(self, now: float) -> list[HeardEngine]:
        """When each was heard last."""
        return [
            HeardEngine(engine_id, heard.beacon.number, now - heard.at, heard.beacon.next, heard.beacon.build)
            for engine_id, heard in self._engines.items()
        ]

    def number(self, engine_id: str) -> int:
        """The number of the last beacon that we heard of this engine; 0 if none."""
        heard = self._engines.get(engine_id)
        return heard.beacon.number if heard is not None else 0

    def silent(self, now: float) -> dict[str, set[str]]:
        """Those that missed their beats, each with what it leads."""
        return {
            engine_id: _led(heard.beacon)
            for engine_id, heard in self._engines.items()
            if heard.liveness(now) != "alive"
        }

    def tabs(self, now: float) -> list[TabInfo]:
        return [info for heard in self._engines.values() for info in heard.infos(now)]

    def leaders(self, now: float) -> list[LeaderInfo]:
        return [info for heard in self._engines.values() for info in heard.leader_infos(heard.beacon.leaders, now)]

    def leaders_of(self, resource: str, now: float) -> list[LeaderInfo]:
        return [
            info
            for heard in self._engines.values()
            if (notes := heard.leads.get(resource))
            for info in heard.leader_infos(notes, now)
        ]

    def leads(self, resource: str, now: float) -> int:
        """How many of their tabs are said to lead it, of those not expired."""
        return sum(
            len(notes)
            for heard in self._engines.values()
            if (notes := heard.leads.get(resource)) and heard.liveness(now) != "expired"
        )

    def acting(self, now: float) -> Counter[str]:
        """How many of their tabs are said to lead each resource, of those not expired."""
        found: Counter[str] = Counter()
        for heard in self._engines.values():
            if heard.beacon.leaders and heard.liveness(now) != "expired":
                found.update(note.resource for note in heard.beacon.leaders)
        return found

    def led(self) -> set[tuple[str, int]]:
        """What they are said to lead, and in which epoch."""
        return {(note.resource, note.epoch) for heard in self._engines.values() for note in heard.beacon.leaders}

    def versions(self) -> set[tuple[str, str]]:
        """The versions of the app that their tabs run, each with its bundle's build."""
        return {(note.version, heard.beacon.build) for heard in self._engines.values() for note in heard.beacon.tabs}


def _led(beacon: Beacon) -> set[str]:
    return {note.resource for note in beacon.leaders}
