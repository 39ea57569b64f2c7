"""Guards for an app's own data and state (docs/guards.md): ``from tabhelm import guard``.

``await guard.check(transaction, "fence", token)`` in a transaction of the app's own database (``tabhelm.database``).
"""

from __future__ import annotations

from tabhelm.errors import StaleOwner
from tabhelm.fencing.store_guard import FENCE, MemoryGuard, Rule, apply_if_current, check

__all__ = ["FENCE", "MemoryGuard", "Rule", "StaleOwner", "apply_if_current", "check"]
