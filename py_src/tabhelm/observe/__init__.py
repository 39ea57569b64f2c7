"""What happened? Typed events, kept for a while and given to whoever asks."""

from __future__ import annotations

from tabhelm.observe.events import (
    EngineReady,
    EpochIssued,
    Event,
    Events,
    HeldLockLost,
    LeadershipChanged,
    LockTimedOut,
    LoopFailed,
    LoopOverran,
    MessageIgnored,
    OperationDied,
    QueuePaused,
    StorageChanged,
    TabJoined,
    TabLeft,
    TaskFailed,
    TookOver,
    WriteRefused,
    as_dict,
)

__all__ = [
    "EngineReady",
    "EpochIssued",
    "Event",
    "Events",
    "HeldLockLost",
    "LeadershipChanged",
    "LockTimedOut",
    "LoopFailed",
    "LoopOverran",
    "MessageIgnored",
    "OperationDied",
    "QueuePaused",
    "StorageChanged",
    "TabJoined",
    "TabLeft",
    "TaskFailed",
    "TookOver",
    "WriteRefused",
    "as_dict",
]
