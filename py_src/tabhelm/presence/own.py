"""Our own tabs, and what they lead: what this engine's beacons say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from tabhelm.messages import LeaderNote, TabNote
from tabhelm.presence.infos import LeaderInfo, LeaderReport, TabInfo, leader_info
from tabhelm.presence.news import News, changed_in
from tabhelm.presence.signs import Signs


class OwnTabs:
    """The tabs of this engine. ``in_page``: it runs in the page of its only tab."""

    def __init__(self, engine_id: str, build: str, in_page: bool, signs: Signs, news: News) -> None:
        self._engine_id = engine_id
        self._build = build
        self._in_page = in_page
        self._signs = signs
        self._news = news
        self._tabs: dict[str, TabNote] = {}
        self._put_at: dict[str, float] = {}
        self._infos: dict[str, TabInfo] = {}
        self._leading: dict[tuple[str, str], LeaderNote] = {}
        self._leading_at: dict[tuple[str, str], float] = {}
        self._leads: dict[str, dict[str, None]] = {}
        """Which of our own tabs lead a resource, in order."""
        self._reports: dict[tuple[str, str], Callable[[], LeaderReport]] = {}

    # -- what changes -------------------------------------------------------------------------------------------------

    def put(self, note: TabNote, now: float) -> None:
        """Add or replace one of them. ``note.age`` counts from ``now``."""
        known = self._tabs.get(note.connection)
        if known == note:
            return
        self._put_at.setdefault(note.connection, now)
        self._tabs[note.connection] = note
        self._infos[note.connection] = TabInfo.of(note, self._engine_id, "alive", build=self._build)
        self._changed(changed_in(known, note))

    def remove(self, connection_id: str) -> None:
        note = self._tabs.pop(connection_id, None)
        if note is not None:
            del self._put_at[connection_id], self._infos[connection_id]
            self._changed(note.stands)

    def _changed(self, resources: Iterable[str]) -> None:
        self._signs.throttled = self._in_page and not any(note.visible for note in self._tabs.values())
        self._news.tell(resources)

    def set_leading(self, note: LeaderNote, now: float, report: Callable[[], LeaderReport]) -> None:
        """One of them leads; ``report`` says how it does whenever that is to be told."""
        key = (note.resource, note.connection)
        self._leading[key], self._leading_at[key], self._reports[key] = note, now, report
        self._leads.setdefault(note.resource, {})[note.connection] = None
        self._news.tell([note.resource])

    def clear_leading(self, resource: str, connection_id: str, now: float) -> None:
        if self._leading.pop((resource, connection_id), None) is not None:
            del self._leading_at[resource, connection_id]
            del self._reports[resource, connection_id]
            del self._leads[resource][connection_id]
            if not self._leads[resource]:
                del self._leads[resource]
            self._signs.went([resource], now, self._engine_id)
            self._news.tell([resource])

    # -- what the beacon says -----------------------------------------------------------------------------------------

    def notes(self, now: float) -> tuple[tuple[TabNote, ...], tuple[LeaderNote, ...]]:
        """Our tabs and what they lead, with ages as of ``now``."""
        tabs = tuple(replace(note, age=max(0.0, now - self._put_at[key])) for key, note in self._tabs.items())
        return tabs, tuple(self._leader(key, now) for key in self._leading)

    def part(self) -> object:
        """What ``notes`` says, to be compared: without ages, and without progress, which a loop may tell as often as it
        likes. ``None`` without tabs."""
        if not self._tabs:
            return None
        leaders = tuple((note, self._reports[key]().health) for key, note in self._leading.items())
        return tuple(self._tabs.values()), leaders

    def _leader(self, key: tuple[str, str], now: float) -> LeaderNote:
        report = self._reports[key]()
        return replace(
            self._leading[key],
            age=max(0.0, now - self._leading_at[key]),
            health=report.health,
            progress=report.progress,
            progress_age=None if report.progress_at is None else max(0.0, now - report.progress_at),
        )

    # -- what is known ------------------------------------------------------------------------------------------------

    def said(self) -> tuple[TabNote, ...]:
        """The tabs, as they said of themselves when they last changed."""
        return tuple(self._tabs.values())

    def tabs(self, now: float) -> list[TabInfo]:
        return [replace(info, age=info.age + max(0.0, now - self._put_at[key])) for key, info in self._infos.items()]

    def leaders(self, now: float) -> list[LeaderInfo]:
        return [self._info(key, now) for key in self._leading]

    def leaders_of(self, resource: str, now: float) -> list[LeaderInfo]:
        return [self._info((resource, connection), now) for connection in self._leads.get(resource, ())]

    def _info(self, key: tuple[str, str], now: float) -> LeaderInfo:
        return leader_info(self._leader(key, now), "alive", 0.0, self._engine_id, self._tabs.values())

    def leads(self, resource: str) -> int:
        """How many of them lead it."""
        return len(self._leads.get(resource, ()))

    def acting(self) -> Counter[str]:
        """How many of them lead each resource."""
        return Counter(resource for resource, _ in self._leading)

    def led(self) -> set[tuple[str, int]]:
        """What they lead, and in which epoch."""
        return {(note.resource, note.epoch) for note in self._leading.values()}

    def versions(self) -> set[tuple[str, str]]:
        """The versions of the app that they run, each with this engine's build."""
        return {(note.version, self._build) for note in self._tabs.values()}
