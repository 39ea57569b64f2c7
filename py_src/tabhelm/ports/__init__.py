"""What do we ask of a browser? Protocols alone; ``tabhelm.browser`` and ``tabhelm.simulated`` answer them.

All times are seconds (``float``). Nothing above this room reads a clock, draws a random number or touches ``js``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tabhelm.ports.channel import Channel, Channels
from tabhelm.ports.clock import Clock, Timer
from tabhelm.ports.database import Database, Databases, Index, KeyRange, Opaque, Schema, Store, Transaction
from tabhelm.ports.entropy import Entropy
from tabhelm.ports.http import Http, HttpAnswer
from tabhelm.ports.lifecycle import Lifecycle, LifecycleEvent, PageLifecycle, PageState
from tabhelm.ports.locks import HeldLock, LockEnd, LockInfo, Locks, LockSnapshot
from tabhelm.ports.storage import Storage, StorageEstimate


@dataclass(frozen=True, slots=True)
class Ports:
    """One context's whole browser, as the core sees it."""

    clock: Clock
    entropy: Entropy
    locks: Locks
    channels: Channels
    databases: Databases
    http: Http
    storage: Storage


__all__ = [
    "Channel",
    "Channels",
    "Clock",
    "Database",
    "Databases",
    "Entropy",
    "HeldLock",
    "Http",
    "HttpAnswer",
    "Index",
    "KeyRange",
    "Lifecycle",
    "LifecycleEvent",
    "LockEnd",
    "LockInfo",
    "LockSnapshot",
    "Locks",
    "Opaque",
    "PageLifecycle",
    "PageState",
    "Ports",
    "Schema",
    "Storage",
    "StorageEstimate",
    "Store",
    "Timer",
    "Transaction",
]
