"""What the roster says of tabs, leaders and engines: views, as of now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tabhelm.messages import LeaderNote, Progress, TabNote

Liveness = Literal["alive", "suspect", "expired"]


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


def leader_info(
    note: LeaderNote, liveness: Liveness, older: float, engine_id: str, tabs: Iterable[TabNote]
) -> LeaderInfo:
    """From a note that was written ``older`` seconds ago; ``tabs`` are those of its engine."""
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
