"""What decides? Each authority declares its guarantees; here the Web Locks, others follow behind the same Protocol."""

from __future__ import annotations

from tabhelm.authority.base import Authority, Guarantees, Hold
from tabhelm.authority.choice import Authorities, Choice
from tabhelm.authority.web_locks import WebLocksAuthority

__all__ = ["Authorities", "Authority", "Choice", "Guarantees", "Hold", "WebLocksAuthority"]
