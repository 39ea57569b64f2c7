"""The receiving end of fenced writes, for CPython: an ASGI receiver and its stores.

app = FencedReceiver(apply, store=SqliteFenceStore("effects.db"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tabhelm.server.effects import Denied, Effect, Reject, Retry
from tabhelm.server.lease_memory import MemoryLeaseStore
from tabhelm.server.lease_metrics import LeaseMetrics
from tabhelm.server.lease_service import LeaseService
from tabhelm.server.lease_sqlite import SqliteLeaseStore
from tabhelm.server.lease_store import LeaseKey, LeaseRecord, LeaseStore, TooManyLeases
from tabhelm.server.metrics import ReceiverMetrics
from tabhelm.server.middleware import FencedReceiverMiddleware
from tabhelm.server.receiver import FencedReceiver
from tabhelm.server.sqlite import SqliteFenceStore
from tabhelm.server.store import FenceStore, FenceTransaction, StoreBusy, TransactionBroken

if TYPE_CHECKING:
    from tabhelm.server.lease_postgres import PostgresLeaseStore
    from tabhelm.server.postgres import PostgresFenceStore

__all__ = [
    "Denied",
    "Effect",
    "FenceStore",
    "FenceTransaction",
    "FencedReceiver",
    "FencedReceiverMiddleware",
    "LeaseKey",
    "LeaseMetrics",
    "LeaseRecord",
    "LeaseService",
    "LeaseStore",
    "MemoryLeaseStore",
    "PostgresFenceStore",
    "PostgresLeaseStore",
    "ReceiverMetrics",
    "Reject",
    "Retry",
    "SqliteFenceStore",
    "SqliteLeaseStore",
    "StoreBusy",
    "TooManyLeases",
    "TransactionBroken",
]


_IN_POSTGRES = {
    "PostgresFenceStore": "tabhelm.server.postgres",
    "PostgresLeaseStore": "tabhelm.server.lease_postgres",
}


def __getattr__(name: str) -> Any:
    """Those who use SQLite alone need no psycopg."""
    if name not in _IN_POSTGRES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_IN_POSTGRES[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} needs psycopg and psycopg_pool ({error}), the extra 'postgres' of tabhelm: in a checkout of it, "
            "pip install '.[postgres]'",
            name=error.name,
        ) from error
