"""What may only one tab do at a time? Locks of the app's own, and work that one tab does for all (single flight)."""

from __future__ import annotations

from tabhelm.locking.hub import Holder, LockHub
from tabhelm.locking.interruption import Interruption
from tabhelm.locking.lock import Lock, Who, lock_name
from tabhelm.locking.outcome import MAX_REASON, MAX_RESULT, Outcome, check_size
from tabhelm.locking.single_flight import SingleFlights, TabFlights, fly
from tabhelm.locking.tab_locks import LockRequest, TabLocks

__all__ = [
    "MAX_REASON",
    "MAX_RESULT",
    "Holder",
    "Interruption",
    "Lock",
    "LockHub",
    "LockRequest",
    "Outcome",
    "SingleFlights",
    "TabFlights",
    "TabLocks",
    "Who",
    "check_size",
    "fly",
    "lock_name",
]
