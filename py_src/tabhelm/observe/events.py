"""The events, as frozen dataclasses. Each class's name in kebab case is its ``type`` on the wire.

They hold ids and short words, never payloads, tokens of a session or personal data: they go to logs and support
tickets.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tabhelm.listeners import Listeners


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine booted. ``fallback_reason`` says why the memory snapshot could not be used, if it could not."""

    engine: str
    boot: str
    boot_ms: float
    fallback_reason: str | None = None


@dataclass(frozen=True, slots=True)
class TabJoined:
    tab: str
    connection: str
    generation: int


@dataclass(frozen=True, slots=True)
class TabLeft:
    tab: str
    connection: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    """One step of one tab's election for one resource. On the wire ``before`` and ``after`` are ``from`` and ``to``.
    ``detail``: what failed, in words, where it backs off because of that, or why the policy is refused."""

    resource: str
    tab: str
    before: str
    after: str
    reason: str
    epoch: int | None
    lifecycle: str
    visible: bool
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class EpochIssued:
    """A grant: the issuing transaction has completed. The history checker reads these."""

    resource: str
    domain: str
    epoch: int
    owner: str
    authority: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """Another authority than the first of the policy's list decides who leads (``after``; ``None``: nothing can), and
    why. On the wire ``before`` and ``after`` are ``from`` and ``to``."""

    resource: str
    before: str
    after: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseTrouble:
    """A lease service is of no use now: ``detail`` says why; ``None``: it is again. A holder keeps its lease only for
    as long as it could be renewed."""

    resource: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class TookOver:
    """A holder without any sign of life was robbed of its lock; with this epoch its late writes are refused."""

    resource: str
    epoch: int
    silent_for_ms: float


@dataclass(frozen=True, slots=True)
class LoopFailed:
    resource: str
    error: str


@dataclass(frozen=True, slots=True)
class LoopOverran:
    """A loop outlived its grace. It leads no more, and what it still writes is fenced."""

    resource: str
    grace_ms: float


@dataclass(frozen=True, slots=True)
class MessageIgnored:
    """Something on the channel or a port was not for us; ``count`` so far for this reason."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """A receiver refused a token. ``verdict`` is ``stale`` or ``overtaken``."""

    resource: str
    epoch: int
    verdict: str


@dataclass(frozen=True, slots=True)
class QueuePaused:
    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueueTrouble:
    """A queue's endpoint cannot be used: ``detail`` names the URL, what it answered and what to look at; ``None``: it
    works again. Once for each reason; what may pass, from the third time in a row on."""

    queue: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class OperationDied:
    """An operation went to the dead-letter list."""

    queue: str
    operation: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueueLost:
    """The storage that held a queue was deleted, and with it acknowledged ``operations`` that were neither committed
    nor removed (as of what this engine last saw of the queue)."""

    queue: str
    operations: int


@dataclass(frozen=True, slots=True)
class HeldLockLost:
    """A lock of the app's own (or of a single flight) ended under a body that was running."""

    lock: str
    tab: str
    reason: str
    held_ms: float


@dataclass(frozen=True, slots=True)
class LockTimedOut:
    """A lock of the app's own was not free in time. ``holder``: the tab that held it, if known."""

    lock: str
    tab: str
    waited_ms: float
    holder: str | None


@dataclass(frozen=True, slots=True)
class ActingAlarm:
    """For longer than the policy's ``acting_alarm`` nobody was said to lead, though somebody could, or several were."""

    resource: str
    acting: int
    for_ms: int


@dataclass(frozen=True, slots=True)
class ActingRestored:
    """The end of an ``ActingAlarm``: one leads, or nobody could. ``for_ms``: how long it was wrong."""

    resource: str
    acting: int
    for_ms: int


@dataclass(frozen=True, slots=True)
class UpdateAvailable:
    """A tab of the same protocol runs a newer ``version`` of the app than this one. Told once for each version."""

    tab: str
    connection: str
    version: str
    build_id: str


@dataclass(frozen=True, slots=True)
class StorageChanged:
    """The database opened (``opened``), was closed under us (``closed``), gave way to an upgrade or a deletion
    (``versionchange``), does not open (``blocked``), is another one than before, and empty (``wiped``), or was upgraded
    by a later release (``newer``)."""

    database: str
    change: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A background task of tabhelm itself failed: a fault to report."""

    task: str
    error: str


Event = (
    EngineReady
    | TabJoined
    | TabLeft
    | LeadershipChanged
    | EpochIssued
    | Degraded
    | LeaseTrouble
    | TookOver
    | LoopFailed
    | LoopOverran
    | MessageIgnored
    | WriteRefused
    | QueuePaused
    | QueueTrouble
    | OperationDied
    | QueueLost
    | HeldLockLost
    | LockTimedOut
    | ActingAlarm
    | ActingRestored
    | UpdateAvailable
    | StorageChanged
    | TaskFailed
)


def event_type(event: Event) -> str:
    """``LeadershipChanged`` → ``leadership-changed``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(event).__name__).lower()


def as_dict(event: Event) -> dict[str, Any]:
    """The event as on the wire: with its ``type``, and fields in camel case."""
    return {"type": event_type(event), **{_camel(name): value for name, value in asdict(event).items()}}


_KEYWORDS = {"before": "from", "after": "to"}
"""Wire names that Python keeps for itself."""


def _camel(name: str) -> str:
    return _KEYWORDS.get(name) or re.sub("_([a-z])", lambda found: found[1].upper(), name)


class Events:
    """Where events go: the last ``keep`` are kept, subscribers are called, counts never forget."""

    def __init__(self, keep: int = 256) -> None:
        self.recent: deque[Event] = deque(maxlen=keep)
        self.counts: Counter[str] = Counter()
        self._ignored: Counter[str] = Counter()
        self._listeners: Listeners[[Event]] = Listeners("event-subscriber", self.failed)

    def emit(self, event: Event) -> None:
        """Record an event and hand it on. A subscriber that raises is dropped: watching must not break what is
        watched."""
        self.recent.append(event)
        self.counts[event_type(event)] += 1
        self._listeners.tell(event)

    def ignored(self, reason: str) -> None:
        """Count an ignored message; an event only at 1, 10, 100 …, so that a flood of them cannot flood the log."""
        self._ignored[reason] += 1
        count = self._ignored[reason]
        if str(count).rstrip("0") == "1":
            self.emit(MessageIgnored(reason, count))

    @property
    def ignored_counts(self) -> dict[str, int]:
        return dict(self._ignored)

    def failed(self, task: str, error: BaseException) -> None:
        """A background task failed (the ``on_failure`` of ``Tasks``)."""
        self.emit(TaskFailed(task, f"{type(error).__name__}: {error}"))

    def subscribe(self, subscriber: Callable[[Event], None]) -> Callable[[], None]:
        """Call back at every event; returns the way to stop."""
        return self._listeners.add(subscriber)
