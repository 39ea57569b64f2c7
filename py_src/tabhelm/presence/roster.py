"""The tabs that this engine knows of: its own, and those that other engines' beacons name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tabhelm.messages import Beacon, LeaderNote, LeaderSigns, TabNote
from tabhelm.presence.elsewhere import Elsewhere
from tabhelm.presence.infos import HeardEngine, LeaderInfo, LeaderReport, TabInfo
from tabhelm.presence.news import News
from tabhelm.presence.others import OtherEngines
from tabhelm.presence.own import OwnTabs
from tabhelm.presence.signs import Sign, Signs

LEADER_BEAT = 5.0
BEAT = 15.0


class Roster:
    """Everybody we know of. ``subscribe`` tells when it changed. ``in_page``: we run in the page of our only tab."""

    def __init__(self, engine_id: str, *, in_page: bool = False, build: str = "") -> None:
        self.engine_id = engine_id
        self.build = build
        self.signs = Signs()
        self._news = News()
        self._own = OwnTabs(engine_id, build, in_page, self.signs, self._news)
        self._others = OtherEngines(engine_id, self.signs, self._news)
        self._elsewhere = Elsewhere(engine_id, self.signs, self._news)

    # -- our own tabs -------------------------------------------------------------------------------------------------

    def put_own(self, note: TabNote, now: float) -> None:
        """Add or replace one of our own tabs. ``note.age`` counts from ``now``."""
        self._own.put(note, now)

    def remove_own(self, connection_id: str) -> None:
        self._own.remove(connection_id)

    def set_leading(self, note: LeaderNote, now: float, report: Callable[[], LeaderReport] = LeaderReport) -> None:
        """One of our own tabs leads; ``report`` says how it does whenever that is to be told."""
        self._own.set_leading(note, now, report)

    def clear_leading(self, resource: str, connection_id: str, now: float) -> None:
        self._own.clear_leading(resource, connection_id, now)

    def own_notes(self, now: float) -> tuple[tuple[TabNote, ...], tuple[LeaderNote, ...]]:
        """Our tabs and what they lead, with ages as of ``now``: what the beacon says."""
        return self._own.notes(now)

    def own_part(self) -> object:
        """What ``own_notes`` says, to be compared: without ages, and without progress. ``None`` without tabs."""
        return self._own.part()

    def own_tabs(self) -> tuple[TabNote, ...]:
        """Our own tabs, as they said of themselves when they last changed."""
        return self._own.said()

    # -- everybody else -----------------------------------------------------------------------------------------------

    def heard(self, beacon: Beacon, now: float) -> bool:
        """Take in a beacon; true if its sender is new to us. One older than what we know of its sender is dropped."""
        return self._others.heard(beacon, now)

    def heard_signs(self, signs: LeaderSigns, now: float) -> frozenset[str]:
        """Take in what an engine of perhaps another protocol leads: only whether somebody lives. Returns what it leads,
        or led before; nothing if it is no news."""
        return self._elsewhere.heard(signs, now)

    def forget(self, engine_id: str, now: float) -> None:
        """This engine is dead, and its tabs speak no more through it."""
        self._others.forget(engine_id, now)

    def forget_others(self) -> None:
        """We heard nothing for a while, or shall not: begin anew with what is said from now on."""
        self._others.forget_all()

    def tick(self, now: float) -> None:
        """Look at the clock: forgive the time in which we stood still, forget who is long gone, tell what changed."""
        gap = self.signs.tick(now)
        self._others.tick(now, gap)
        self._elsewhere.tick(now, gap)

    def engines(self) -> dict[str, bool]:
        """The other engines, those first that we have known for longest; whether each is said to lead something."""
        return self._others.engines()

    def heard_from(self, now: float) -> list[HeardEngine]:
        """When each other engine was heard last."""
        return self._others.heard_from(now)

    def number(self, engine_id: str) -> int:
        """The number of the last beacon that we heard of this engine; 0 if none."""
        return self._others.number(engine_id)

    def silent(self, now: float) -> dict[str, set[str]]:
        """The other engines that missed their beats, each with what it leads."""
        return self._others.silent(now)

    # -- what is known of all -----------------------------------------------------------------------------------------

    def tabs(self, now: float) -> list[TabInfo]:
        """All known tabs, our own first."""
        return self._own.tabs(now) + self._others.tabs(now)

    def versions(self) -> frozenset[tuple[str, str]]:
        """The versions of the app that tabs run, each with its bundle's build."""
        return frozenset(self._own.versions() | self._others.versions())

    def leaders(self, now: float) -> list[LeaderInfo]:
        """All that are said to lead, our own first."""
        return self._own.leaders(now) + self._others.leaders(now)

    def leaders_of(self, resource: str, now: float) -> list[LeaderInfo]:
        """All that are said to lead ``resource``, our own first. It costs the same however many others there are."""
        return self._own.leaders_of(resource, now) + self._others.leaders_of(resource, now)

    def leader(self, resource: str, now: float) -> LeaderInfo | None:
        """Who is said to lead ``resource``: the highest epoch among those not expired, or nobody."""
        found = [info for info in self.leaders_of(resource, now) if info.liveness != "expired"]
        return max(found, key=lambda info: (info.epoch, info.connection_id), default=None)

    def led(self) -> frozenset[tuple[str, int]]:
        """What is said to be led, and in which epoch."""
        return frozenset(self._own.led() | self._others.led())

    def acting(self, now: float) -> Counter[str]:
        """How many are said to lead each resource now, of those not expired.

        A queue's leader may be of another protocol. Nobody tells us when that one dies: so it is only counted where we
        know of none, and once.
        """
        found = self._own.acting() + self._others.acting(now)
        return found + Counter(resource for resource in set(self._elsewhere.acting(now)) if not found[resource])

    def count_acting(self, resource: str, now: float) -> int:
        """How many are said to lead this one now, of those not expired."""
        found = self._own.leads(resource) + self._others.leads(resource, now)
        return found or int(self._elsewhere.leads(resource, now))

    def sign(self, resource: str, now: float) -> Sign | None:
        """The last sign of life of whoever leads ``resource``; ``None`` if there never was one."""
        if self._own.leads(resource):
            return Sign(self.signs.awake(now), LEADER_BEAT, True, self.engine_id)
        return self.signs.last(resource)

    @property
    def throttled(self) -> bool:
        """Whether our own timers may be throttled to one a minute: we run in a page that is hidden."""
        return self.signs.throttled

    # -- who wants to know --------------------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at every change; returns the way to stop."""
        return self._news.subscribe(callback)

    def follow(self, resource: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when something changed that concerns who leads ``resource``, or who could; returns the way to
        stop."""
        return self._news.follow(resource, callback)

    def tell(self) -> None:
        """Something that is not kept here changed."""
        self._news.tell(())
