"""The tabs that this engine knows of: its own, and those that other engines' beacons name.

Time is judged by the observer's own monotonic clock, between beacons that it heard itself, and an engine that is late
is late by its own word (``next``). When the observer itself stood still (frozen, suspended, throttled), everybody else
is given that time: silence that we could not have heard proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tabhelm.messages import MAX_NEXT, Beacon, LeaderNote, LeaderSigns, Progress, TabNote
from tabhelm.presence.signs import Sign, Signs

Liveness = Literal["alive", "suspect", "expired"]

SUSPECT_BEATS = 2.0
EXPIRED_BEATS = 4.0
REMOVED_AFTER = 60.0
LEADER_BEAT = 5.0
BEAT = 15.0


@dataclass(frozen=True, slots=True)
class TabInfo:
    """One tab as this engine sees it. ``age`` is in seconds. A hint, as old as the last beacon."""

    tab_id: str
    connection_id: str
    generation: int
    engine_id: str
    lifecycle: str
    visible: bool
    online: bool
    version: str
    capabilities: frozenset[str]
    stands: frozenset[str]
    age: float
    liveness: Liveness
    build: str = ""
    """Its bundle's build id; empty where there is none."""
    scores: tuple[tuple[str, float], ...] = ()
    turns: tuple[tuple[str, int], ...] = ()

    def score(self, resource: str) -> float:
        """How good a leader of ``resource`` (a token resource) it says that it is; 0 where it says nothing."""
        return dict(self.scores).get(resource, 0.0)

    def turn(self, resource: str) -> int:
        """The epoch in which it last led ``resource``; 0 if it never did, or does not say."""
        return dict(self.turns).get(resource, 0)

    @classmethod
    def of(cls, note: TabNote, engine_id: str, liveness: Liveness, older: float = 0.0, *, build: str = "") -> TabInfo:
        """From a tab's note that was written ``older`` seconds ago."""
        return cls(
            note.tab,
            note.connection,
            note.generation,
            engine_id,
            note.lifecycle,
            note.visible,
            note.online,
            note.version,
            frozenset(note.capabilities),
            frozenset(note.stands),
            note.age + older,
            liveness,
            build,
            note.scores,
            note.turns,
        )


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """What a leader says of itself: one word, and how far it is. ``progress_at`` is its own monotonic time."""

    health: str = ""
    progress: Progress = None
    progress_at: float | None = None


@dataclass(frozen=True, slots=True)
class LeaderInfo:
    """Who is said to lead a resource: a hint, as old as its engine's last beacon."""

    resource: str
    tab_id: str
    connection_id: str
    domain: str
    epoch: int
    age: float
    liveness: Liveness
    engine_id: str = ""
    version: str = ""
    """Of the leader's app, as its tab says."""
    authority: str = ""
    """What decided: ``web-locks``, …; empty if its engine did not say."""
    health: str = ""
    """In the leader's own words: ``ok``, …; empty where it does not check its health."""
    progress: Progress = None
    """What the leader last said with ``context.progress()``."""
    progress_age: float | None = None
    """Seconds since then; ``None`` if it never said anything."""


@dataclass(frozen=True, slots=True)
class HeardEngine:
    """Another engine's last beacon: its number, how long ago it came, and when the next one is due (seconds)."""

    engine_id: str
    number: int
    silent_for: float
    next: float
    build: str


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


@dataclass(slots=True)
class _Elsewhere:
    """What an engine of perhaps another protocol leads."""

    number: int
    at: float
    resources: frozenset[str]
    next: float
    told: bool = False
    """That it fell silent."""

    def silent(self, now: float) -> bool:
        return now - self.at > EXPIRED_BEATS * self.next


class Roster:
    """Everybody we know of. ``subscribe`` tells when it changed. ``in_page``: we run in the page of our only tab."""

    def __init__(self, engine_id: str, *, in_page: bool = False, build: str = "") -> None:
        self.engine_id = engine_id
        self.build = build
        self.signs = Signs()
        self._in_page = in_page
        self._elsewhere: dict[str, _Elsewhere] = {}
        self._engines: dict[str, _Heard] = {}
        self._own: dict[str, TabNote] = {}
        self._own_at: dict[str, float] = {}
        self._leading: dict[tuple[str, str], LeaderNote] = {}
        self._leading_at: dict[tuple[str, str], float] = {}
        self._leads: dict[str, dict[str, None]] = {}
        """Which of our own tabs lead a resource, in order."""
        self._reports: dict[tuple[str, str], Callable[[], LeaderReport]] = {}
        self._own_infos: dict[str, TabInfo] = {}
        self._subscribers: list[Callable[[], None]] = []
        self._followers: dict[str, list[Callable[[], None]]] = {}
        self._judged: dict[str, Liveness] = {}

    # -- our own tabs -------------------------------------------------------------------------------------------------

    def put_own(self, note: TabNote, now: float) -> None:
        """Add or replace one of our own tabs. ``note.age`` counts from ``now``."""
        known = self._own.get(note.connection)
        if known == note:
            return
        self._own_at.setdefault(note.connection, now)
        self._own[note.connection] = note
        self._own_infos[note.connection] = TabInfo.of(note, self.engine_id, "alive", build=self.build)
        self._own_changed(_changed_in(known, note))

    def remove_own(self, connection_id: str) -> None:
        note = self._own.pop(connection_id, None)
        if note is not None:
            del self._own_at[connection_id], self._own_infos[connection_id]
            self._own_changed(note.stands)

    def _own_changed(self, resources: Iterable[str]) -> None:
        self.signs.throttled = self._in_page and not any(note.visible for note in self._own.values())
        self._changed(resources)

    def set_leading(self, note: LeaderNote, now: float, report: Callable[[], LeaderReport] = LeaderReport) -> None:
        """One of our own tabs leads; ``report`` says how it does whenever that is to be told."""
        key = (note.resource, note.connection)
        self._leading[key], self._leading_at[key], self._reports[key] = note, now, report
        self._leads.setdefault(note.resource, {})[note.connection] = None
        self._changed([note.resource])

    def clear_leading(self, resource: str, connection_id: str, now: float) -> None:
        if self._leading.pop((resource, connection_id), None) is not None:
            del self._leading_at[resource, connection_id]
            del self._reports[resource, connection_id]
            del self._leads[resource][connection_id]
            if not self._leads[resource]:
                del self._leads[resource]
            self.signs.went([resource], now, self.engine_id)
            self._changed([resource])

    def own_notes(self, now: float) -> tuple[tuple[TabNote, ...], tuple[LeaderNote, ...]]:
        """Our tabs and what they lead, with ages as of ``now``: what the beacon says."""
        tabs = tuple(replace(note, age=max(0.0, now - self._own_at[key])) for key, note in self._own.items())
        return tabs, tuple(self._own_leader(key, now) for key in self._leading)

    def own_part(self) -> object:
        """What ``own_notes`` says, to be compared: without ages, and without progress, which a loop may tell as often
        as it likes. ``None`` without tabs."""
        if not self._own:
            return None
        leaders = tuple((note, self._reports[key]().health) for key, note in self._leading.items())
        return tuple(self._own.values()), leaders

    def _own_leader(self, key: tuple[str, str], now: float) -> LeaderNote:
        report = self._reports[key]()
        return replace(
            self._leading[key],
            age=max(0.0, now - self._leading_at[key]),
            health=report.health,
            progress=report.progress,
            progress_age=None if report.progress_at is None else max(0.0, now - report.progress_at),
        )

    # -- everybody else -----------------------------------------------------------------------------------------------

    def heard(self, beacon: Beacon, now: float) -> bool:
        """Take in a beacon; true if its sender is new to us. One older than what we know of its sender is dropped."""
        known = self._engines.get(beacon.sender)
        if beacon.sender == self.engine_id or (known is not None and beacon.number <= known.beacon.number):
            return False
        led = _led(known.beacon) if known is not None else set()
        self.signs.lives(_led(beacon), beacon.next, now, beacon.sender)
        self.signs.went(led - _led(beacon), now, beacon.sender)
        if not beacon.tabs:
            if self._engines.pop(beacon.sender, None) is not None and known is not None:
                self._changed(_concerned_by(known.beacon))
            return False
        self._engines[beacon.sender] = _Heard.of(beacon, now)
        if known is None:
            self._changed(_concerned_by(beacon))
        elif (known.beacon.tabs, known.beacon.leaders) != (beacon.tabs, beacon.leaders):
            self._changed(_changed_between(known.beacon, beacon))
        return known is None

    def heard_signs(self, signs: LeaderSigns, now: float) -> frozenset[str]:
        """Take in what an engine of perhaps another protocol leads: only whether somebody lives. Returns what it leads,
        or led before; nothing if it is no news."""
        known = self._elsewhere.get(signs.sender)
        if signs.sender == self.engine_id or (known is not None and signs.number <= known.number):
            return frozenset()
        led = frozenset(note.resource for note in signs.leaders)
        self.signs.lives(led, signs.next, now, signs.sender)
        if known is not None:
            self.signs.went(known.resources - led, now, signs.sender)
        self._elsewhere[signs.sender] = _Elsewhere(signs.number, now, led, signs.next)
        return led if known is None else led | known.resources

    def number(self, engine_id: str) -> int:
        """The number of the last beacon that we heard of this engine; 0 if none."""
        heard = self._engines.get(engine_id)
        return heard.beacon.number if heard is not None else 0

    def forget(self, engine_id: str, now: float) -> None:
        """This engine is dead, and its tabs speak no more through it."""
        heard = self._engines.pop(engine_id, None)
        if heard is not None:
            self.signs.went(_led(heard.beacon), now, engine_id)
            self._changed(_concerned_by(heard.beacon))

    def forget_others(self) -> None:
        """We heard nothing for a while, or shall not: begin anew with what is said from now on."""
        if self._engines:
            resources = [name for heard in self._engines.values() for name in _concerned_by(heard.beacon)]
            self._engines.clear()
            self._changed(resources)

    def tick(self, now: float) -> None:
        """Look at the clock: forgive the time in which we stood still, forget who is long gone, tell what changed."""
        gap = self.signs.tick(now)
        if gap:
            for heard in self._engines.values():
                heard.at = min(now, heard.at + gap)
        known = dict(self._engines)
        for engine_id, heard in known.items():
            if now - heard.at > max(REMOVED_AFTER, EXPIRED_BEATS * heard.beacon.next):
                del self._engines[engine_id]
        self._tick_elsewhere(now, gap)
        judged = {engine_id: self._liveness(heard, now) for engine_id, heard in self._engines.items()}
        before, self._judged = self._judged, judged
        if judged != before or gap:  # whoever looked before this found out that we slept has taken them for dead
            others = [
                heard for engine_id, heard in known.items() if gap or before.get(engine_id) != judged.get(engine_id)
            ]
            self._changed([name for heard in others for name in _concerned_by(heard.beacon)])

    def _tick_elsewhere(self, now: float, gap: float) -> None:
        for sender, elsewhere in list(self._elsewhere.items()):
            elsewhere.at = min(now, elsewhere.at + gap)
            if now - elsewhere.at > 2 * MAX_NEXT:
                del self._elsewhere[sender]
            fell_silent = elsewhere.silent(now) and not elsewhere.told
            if fell_silent:
                elsewhere.told = True
            if fell_silent or gap:
                self._changed(elsewhere.resources)

    @staticmethod
    def _liveness(heard: _Heard, now: float) -> Liveness:
        beats = (now - heard.at) / max(heard.beacon.next, 0.001)
        if beats > EXPIRED_BEATS:
            return "expired"
        return "suspect" if beats > SUSPECT_BEATS else "alive"

    # -- what is known ------------------------------------------------------------------------------------------------

    def tabs(self, now: float) -> list[TabInfo]:
        """All known tabs, our own first."""
        found = [
            replace(info, age=info.age + max(0.0, now - self._own_at[key])) for key, info in self._own_infos.items()
        ]
        for heard in self._engines.values():
            liveness, older = self._liveness(heard, now), now - heard.at
            found += [replace(info, liveness=liveness, age=info.age + older) for info in heard.tabs]
        return found

    def leaders(self, now: float) -> list[LeaderInfo]:
        """All that are said to lead, our own first."""
        own = (self._own_leader(key, now) for key in self._leading)
        found = [_leader_info(note, "alive", 0.0, self.engine_id, self._own.values()) for note in own]
        for engine_id, heard in self._engines.items():
            liveness, older = self._liveness(heard, now), now - heard.at
            found += [
                _leader_info(note, liveness, older, engine_id, heard.beacon.tabs) for note in heard.beacon.leaders
            ]
        return found

    def heard_from(self, now: float) -> list[HeardEngine]:
        """When each other engine was heard last."""
        return [
            HeardEngine(engine_id, heard.beacon.number, now - heard.at, heard.beacon.next, heard.beacon.build)
            for engine_id, heard in self._engines.items()
        ]

    def own_tabs(self) -> tuple[TabNote, ...]:
        """Our own tabs, as they said of themselves when they last changed."""
        return tuple(self._own.values())

    def versions(self) -> frozenset[tuple[str, str]]:
        """The versions of the app that tabs run, each with its bundle's build."""
        found = {(note.version, self.build) for note in self._own.values()}
        for heard in self._engines.values():
            found |= {(note.version, heard.beacon.build) for note in heard.beacon.tabs}
        return frozenset(found)

    def acting(self, now: float) -> Counter[str]:
        """How many are said to lead each resource now, of those not expired."""
        found = Counter(resource for resource, _ in self._leading)
        for heard in self._engines.values():
            if heard.beacon.leaders and self._liveness(heard, now) != "expired":
                found.update(note.resource for note in heard.beacon.leaders)
        for elsewhere in self._elsewhere.values():
            # A queue's leader may be of another protocol. Nobody tells us when that one dies: so it is only counted
            # where we know of none, and once.
            if not elsewhere.silent(now):
                found.update(resource for resource in elsewhere.resources if not found[resource])
        return found

    def count_acting(self, resource: str, now: float) -> int:
        """How many are said to lead this one now, of those not expired."""
        found = len(self._leads.get(resource, ()))
        for heard in self._engines.values():
            if (notes := heard.leads.get(resource)) and self._liveness(heard, now) != "expired":
                found += len(notes)
        return found or int(
            any(resource in each.resources and not each.silent(now) for each in self._elsewhere.values())
        )

    def leader(self, resource: str, now: float) -> LeaderInfo | None:
        """Who is said to lead ``resource``: the highest epoch among those not expired, or nobody."""
        found = [info for info in self.leaders_of(resource, now) if info.liveness != "expired"]
        return max(found, key=lambda info: (info.epoch, info.connection_id), default=None)

    def leaders_of(self, resource: str, now: float) -> list[LeaderInfo]:
        """All that are said to lead ``resource``, our own first. It costs the same however many others there are."""
        own = (self._own_leader((resource, connection), now) for connection in self._leads.get(resource, ()))
        found = [_leader_info(note, "alive", 0.0, self.engine_id, self._own.values()) for note in own]
        for engine_id, heard in self._engines.items():
            if notes := heard.leads.get(resource):
                liveness, older = self._liveness(heard, now), now - heard.at
                found += [_leader_info(note, liveness, older, engine_id, heard.beacon.tabs) for note in notes]
        return found

    def led(self) -> frozenset[tuple[str, int]]:
        """What is said to be led, and in which epoch."""
        found = {(note.resource, note.epoch) for note in self._leading.values()}
        for heard in self._engines.values():
            found.update((note.resource, note.epoch) for note in heard.beacon.leaders)
        return frozenset(found)

    def sign(self, resource: str, now: float) -> Sign | None:
        """The last sign of life of whoever leads ``resource``; ``None`` if there never was one."""
        if resource in self._leads:
            return Sign(self.signs.awake(now), LEADER_BEAT, True, self.engine_id)
        return self.signs.last(resource)

    def engines(self) -> dict[str, bool]:
        """The other engines, those first that we have known for longest; whether each is said to lead something."""
        return {engine_id: bool(heard.beacon.leaders) for engine_id, heard in self._engines.items()}

    def silent(self, now: float) -> dict[str, set[str]]:
        """The other engines that missed their beats, each with what it leads."""
        return {
            engine_id: _led(heard.beacon)
            for engine_id, heard in self._engines.items()
            if self._liveness(heard, now) != "alive"
        }

    @property
    def throttled(self) -> bool:
        """Whether our own timers may be throttled to one a minute: we run in a page that is hidden."""
        return self.signs.throttled

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

    def tell(self) -> None:
        """Something that is not kept here changed."""
        self._changed(())

    def _changed(self, resources: Iterable[str]) -> None:
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


def _concerned_by(beacon: Beacon) -> list[str]:
    """The resources that its tabs lead, or stand for."""
    return [*(note.resource for note in beacon.leaders), *(name for note in beacon.tabs for name in note.stands)]


def _changed_between(before: Beacon, after: Beacon) -> set[str]:
    """The resources that are concerned by what is different in two beacons of one engine."""
    known = {note.connection: note for note in before.tabs}
    found: set[str] = set()
    for note in after.tabs:
        found |= _changed_in(known.pop(note.connection, None), note)
    found.update(name for gone in known.values() for name in gone.stands)
    led = [{(note.resource, note.connection, note.epoch) for note in beacon.leaders} for beacon in (before, after)]
    return found | {resource for resource, *_ in led[0] ^ led[1]}


def _changed_in(before: TabNote | None, after: TabNote) -> set[str]:
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


def _led(beacon: Beacon) -> set[str]:
    return {note.resource for note in beacon.leaders}


def _leader_info(
    note: LeaderNote, liveness: Liveness, older: float, engine_id: str, tabs: Iterable[TabNote]
) -> LeaderInfo:
    return LeaderInfo(
        note.resource,
        note.tab,
        note.connection,
        note.domain,
        note.epoch,
        note.age + older,
        liveness,
        engine_id,
        next((tab.version for tab in tabs if tab.connection == note.connection), ""),
        note.authority,
        note.health,
        note.progress,
        None if note.progress_age is None else note.progress_age + older,
    )
