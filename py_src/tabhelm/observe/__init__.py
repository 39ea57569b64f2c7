"""What happened? Typed events, kept for a while and given to whoever asks."""

from __future__ import annotations

from tabhelm.observe.acting import ActingMonitor
from tabhelm.observe.durations import Durations
from tabhelm.observe.events import (
    ActingAlarm,
    ActingRestored,
    Degraded,
    EngineReady,
    EpochIssued,
    Event,
    Events,
    HeldLockLost,
    LeadershipChanged,
    LeaseTrouble,
    LockTimedOut,
    LoopFailed,
    LoopOverran,
    MessageIgnored,
    OperationDied,
    QueueLost,
    QueuePaused,
    QueueTrouble,
    StorageChanged,
    TabJoined,
    TabLeft,
    TaskFailed,
    TookOver,
    UpdateAvailable,
    WriteRefused,
    as_dict,
)
from tabhelm.observe.history import History, Reign
from tabhelm.observe.metrics import Metrics, MetricsRecorder, ResourceMetrics
from tabhelm.observe.pseudonyms import Pseudonyms

__all__ = [
    "ActingAlarm",
    "ActingMonitor",
    "ActingRestored",
    "Durations",
    "Degraded",
    "EngineReady",
    "EpochIssued",
    "Event",
    "Events",
    "History",
    "HeldLockLost",
    "LeadershipChanged",
    "LeaseTrouble",
    "LockTimedOut",
    "LoopFailed",
    "LoopOverran",
    "MessageIgnored",
    "Metrics",
    "MetricsRecorder",
    "OperationDied",
    "QueueLost",
    "Pseudonyms",
    "QueuePaused",
    "QueueTrouble",
    "Reign",
    "ResourceMetrics",
    "StorageChanged",
    "TabJoined",
    "TabLeft",
    "TaskFailed",
    "TookOver",
    "UpdateAvailable",
    "WriteRefused",
    "as_dict",
]
