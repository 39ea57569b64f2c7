"""The receiving end of fenced writes, for CPython: an ASGI receiver and its stores.

app = FencedReceiver(apply, store=SqliteFenceStore("effects.db"))
"""

from __future__ import annotations

from tabhelm.server.effects import Denied, Effect, Reject, Retry
from tabhelm.server.metrics import ReceiverMetrics
from tabhelm.server.receiver import FencedReceiver
from tabhelm.server.sqlite import SqliteFenceStore
from tabhelm.server.store import FenceStore, FenceTransaction, StoreBusy, TransactionBroken

__all__ = [
    "Denied",
    "Effect",
    "FenceStore",
    "FenceTransaction",
    "FencedReceiver",
    "ReceiverMetrics",
    "Reject",
    "Retry",
    "SqliteFenceStore",
    "StoreBusy",
    "TransactionBroken",
]
