"""What decides? Each authority declares its guarantees: Web Locks, a lease in IndexedDB where there are none, and a
lease service where devices compete."""

from __future__ import annotations

from tabhelm.authority.base import Authority, Guarantees, Hold
from tabhelm.authority.choice import Authorities, Choice
from tabhelm.authority.indexeddb_lease import LeaseAuthority
from tabhelm.authority.lease_tools import LeaseTimes
from tabhelm.authority.rivals import Rivals
from tabhelm.authority.server_lease import ServerLeases
from tabhelm.authority.web_locks import WebLocksAuthority

__all__ = [
    "Authorities",
    "Authority",
    "Choice",
    "Guarantees",
    "Hold",
    "LeaseAuthority",
    "LeaseTimes",
    "Rivals",
    "ServerLeases",
    "WebLocksAuthority",
]
