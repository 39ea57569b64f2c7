"""What is counted about leadership, for each resource, since the engine began.

Everything is taken from the events, so nothing is slowed down by being measured. Resources and reasons are bounded:
apps choose these words, and memory must not grow with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tabhelm.observe.durations import DurationCounter, Durations
from tabhelm.observe.events import (
    ActingAlarm,
    Event,
    Events,
    LeadershipChanged,
    LoopFailed,
    LoopOverran,
    TookOver,
    WriteRefused,
)

MOST_RESOURCES = 200
MOST_REASONS = 40
OTHER = "(other)"
_WORD = 60


@dataclass(frozen=True, slots=True)
class ResourceMetrics:
    """Counts of one resource, of all tabs of this engine. Times in seconds."""

    acquisitions: int
    """How often one of our tabs began to lead."""
    failures: Mapping[str, int]
    """How often standing by came to nothing, by reason."""
    step_downs: Mapping[str, int]
    """How often leadership ended, by reason."""
    overruns: int
    """Loops that outlived their grace."""
    loop_failures: int
    takeovers: int
    refused: Mapping[str, int]
    """Writes that a receiver refused, by verdict: ``stale`` (a newer owner), ``overtaken``."""
    alarms: Mapping[str, int]
    """``none`` or ``several``: alarms because nobody led, or more than one."""
    wait: Durations
    """From first asking until leading."""
    hold: Durations
    """From leading until the lock was given back."""
    leaders_acting: int
    """How many are said to lead now: one, unless something is wrong or leadership is just changing hands."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """All figures of one engine at one moment. ``text()`` is the exposition format of Prometheus."""

    resources: Mapping[str, ResourceMetrics]
    """By token resource, ``app:resource[:scope]``."""
    ignored: Mapping[str, int]
    """Messages that were not for us, by cause."""
    events: Mapping[str, int]
    """How many events of each type."""
    tabs: int
    """Tabs in the roster."""
    locks_held: int = 0
    """Locks of the app's own (and of single flights) that tabs of this engine hold now."""
    locks_lost: int = 0
    """How often one ended under its running body."""
    lock_timeouts: int = 0
    """How often one was not free in time."""
    _shown: Callable[[str], str] = field(default=lambda resource: resource, repr=False, compare=False)

    def text(self) -> str:
        """The figures as Prometheus reads them. Scopes are hashed (they may name users); ids of tabs are not in it."""
        from tabhelm.observe.prometheus import exposition

        return exposition(self, self._shown)


@dataclass(slots=True)
class _Counts:
    acquisitions: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    step_downs: Counter[str] = field(default_factory=Counter)
    overruns: int = 0
    loop_failures: int = 0
    takeovers: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    alarms: Counter[str] = field(default_factory=Counter)
    wait: DurationCounter = field(default_factory=DurationCounter)
    hold: DurationCounter = field(default_factory=DurationCounter)


class MetricsRecorder:
    """Listens to the events. ``now`` is a monotonic clock in seconds."""

    def __init__(self, events: Events, now: Callable[[], float]) -> None:
        self._events = events
        self._now = now
        self._counts: dict[str, _Counts] = {}
        self._waiting: dict[tuple[str, str], float] = {}
        self._leading: dict[tuple[str, str], float] = {}
        events.subscribe(self._happened)

    def snapshot(
        self,
        acting: Mapping[str, int],
        tabs: int,
        shown: Callable[[str], str] = lambda resource: resource,
        *,
        locks_held: int = 0,
    ) -> Metrics:
        """The figures now. ``acting``: how many are said to lead each resource; ``shown`` hides scopes in the text."""
        resources = {
            resource: ResourceMetrics(
                counts.acquisitions,
                dict(counts.failures),
                dict(counts.step_downs),
                counts.overruns,
                counts.loop_failures,
                counts.takeovers,
                dict(counts.refused),
                dict(counts.alarms),
                counts.wait.snapshot(),
                counts.hold.snapshot(),
                acting.get(resource, 0),
            )
            for resource, counts in self._counts.items()
        }
        events = dict(self._events.counts)
        return Metrics(
            resources,
            self._events.ignored_counts,
            events,
            tabs,
            locks_held,
            events.get("held-lock-lost", 0),
            events.get("lock-timed-out", 0),
            shown,
        )

    def _happened(self, event: Event) -> None:
        match event:
            case LeadershipChanged():
                self._changed(event)
            case LoopOverran():
                self._of(event.resource).overruns += 1
            case LoopFailed():
                self._of(event.resource).loop_failures += 1
            case TookOver():
                self._of(event.resource).takeovers += 1
            case WriteRefused():
                _count(self._of(event.resource).refused, event.verdict)
            case ActingAlarm():
                self._of(event.resource).alarms["several" if event.acting else "none"] += 1
            case _:
                pass

    def _changed(self, event: LeadershipChanged) -> None:
        counts, key, now = self._of(event.resource), (event.resource, event.tab), self._now()
        if event.after == "waiting":
            self._waiting.setdefault(key, now)  # through failures: it is the same wait
        elif event.after == "leading":
            counts.acquisitions += 1
            counts.wait.add(max(0.0, now - self._waiting.pop(key, now)))
            self._leading[key] = now
        elif event.after == "backing-off" and event.before == "waiting":
            _count(counts.failures, event.reason)
        elif event.after in ("idle", "stopped"):
            self._waiting.pop(key, None)
        if event.before == "leading":
            _count(counts.step_downs, event.reason)
        if event.after not in ("leading", "stepping-down") and (began := self._leading.pop(key, None)) is not None:
            counts.hold.add(max(0.0, now - began))

    def _of(self, resource: str) -> _Counts:
        if resource not in self._counts and len(self._counts) >= MOST_RESOURCES:
            resource = OTHER
        return self._counts.setdefault(resource, _Counts())


def _count(counter: Counter[str], word: str) -> None:
    word = word[:_WORD]
    counter[word if word in counter or len(counter) < MOST_REASONS else OTHER] += 1
