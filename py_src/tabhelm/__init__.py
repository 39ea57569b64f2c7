"""tabhelm: one tab at the helm. Coordination of same-origin browser tabs, in Python under Pyodide.

In a page: ``async with tabhelm.join(app="regcase") as tab:`` (docs/python.md). On a server: ``tabhelm.server``.

The rooms, from the ground up (each imports only rooms above it in this list):

``errors``, ``names``, ``messages``  what can go wrong, what is a thing called, what goes over the wire
``ports``                            what we ask of a browser (Protocols; no implementation)
``browser`` / ``simulated``          the answer of the real browser / of a simulated one with virtual time
``fencing``, ``presence``            who may still write; who is here
``election``, ``authority``          who should lead (a hint); what decides
``leadership``, ``queue``            who does lead and how it stops; what is still to be sent
``locking``                          what may only one tab do at a time
``observe``                          what happened
``tab``, ``host``                    one joined tab; several tabs in one engine, or one in its own page
``server``, ``testing``              the receiving end; real-tab chaos for pytest (both CPython only)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tabhelm.browser.own_database import database as database
    from tabhelm.browser.page import join as join
    from tabhelm.election import LeadershipPolicy as LeadershipPolicy
    from tabhelm.election import Takeover as Takeover
    from tabhelm.errors import AlreadyStanding as AlreadyStanding
    from tabhelm.errors import AskRefused as AskRefused
    from tabhelm.errors import AskTimeout as AskTimeout
    from tabhelm.errors import CircuitOpen as CircuitOpen
    from tabhelm.errors import DatabaseError as DatabaseError
    from tabhelm.errors import ElectionStopped as ElectionStopped
    from tabhelm.errors import FlightFailed as FlightFailed
    from tabhelm.errors import HandlerFailed as HandlerFailed
    from tabhelm.errors import IdentifierReused as IdentifierReused
    from tabhelm.errors import InvalidName as InvalidName
    from tabhelm.errors import InvalidPayload as InvalidPayload
    from tabhelm.errors import InvalidPolicy as InvalidPolicy
    from tabhelm.errors import LeaderChanged as LeaderChanged
    from tabhelm.errors import LeadershipLost as LeadershipLost
    from tabhelm.errors import LockLost as LockLost
    from tabhelm.errors import LockReentered as LockReentered
    from tabhelm.errors import LockTimeout as LockTimeout
    from tabhelm.errors import LockUnavailable as LockUnavailable
    from tabhelm.errors import NoAuthority as NoAuthority
    from tabhelm.errors import NoHandler as NoHandler
    from tabhelm.errors import NoLeader as NoLeader
    from tabhelm.errors import NotCloneable as NotCloneable
    from tabhelm.errors import NotInBrowser as NotInBrowser
    from tabhelm.errors import NotJoined as NotJoined
    from tabhelm.errors import QuotaExceeded as QuotaExceeded
    from tabhelm.errors import StaleOwner as StaleOwner
    from tabhelm.errors import TabhelmError as TabhelmError
    from tabhelm.errors import TooManyCalls as TooManyCalls
    from tabhelm.errors import Unreachable as Unreachable
    from tabhelm.host.joined import JoinedTab as JoinedTab
    from tabhelm.host.joined import Presence as Presence
    from tabhelm.leadership import BackingOff as BackingOff
    from tabhelm.leadership import Election as Election
    from tabhelm.leadership import Idle as Idle
    from tabhelm.leadership import LeaderContext as LeaderContext
    from tabhelm.leadership import Leading as Leading
    from tabhelm.leadership import State as State
    from tabhelm.leadership import SteppingDown as SteppingDown
    from tabhelm.leadership import Stopped as Stopped
    from tabhelm.leadership import Waiting as Waiting
    from tabhelm.leadership.breaker import CircuitBreaker as CircuitBreaker
    from tabhelm.leadership.publishing import PublishedState as PublishedState
    from tabhelm.leadership.serving import Call as Call
    from tabhelm.locking import Lock as Lock
    from tabhelm.observe import Metrics as Metrics
    from tabhelm.observe import Reign as Reign
    from tabhelm.ports.database import Index as Index
    from tabhelm.ports.database import KeyRange as KeyRange
    from tabhelm.ports.database import Store as Store
    from tabhelm.queue import Batch as Batch
    from tabhelm.queue import Queue as Queue
    from tabhelm.queue import QueueStats as QueueStats
    from tabhelm.queue.records import Outcome as Outcome

__version__ = "0.1.0"

_HOMES = {
    "tabhelm.browser.own_database": ("database",),
    "tabhelm.browser.page": ("join",),
    "tabhelm.election": ("LeadershipPolicy", "Takeover"),
    "tabhelm.errors": (
        *(
            "AlreadyStanding",
            "DatabaseError",
            "ElectionStopped",
            "IdentifierReused",
            "InvalidName",
            "InvalidPayload",
            "InvalidPolicy",
        ),
        *("AskRefused", "AskTimeout", "HandlerFailed", "LeaderChanged", "NoHandler", "NoLeader", "TooManyCalls"),
        *("CircuitOpen", "FlightFailed", "LockLost", "LockReentered", "LockTimeout", "LockUnavailable", "NotCloneable"),
        *("LeadershipLost", "NoAuthority", "NotInBrowser", "NotJoined", "QuotaExceeded", "StaleOwner"),
        *("TabhelmError", "Unreachable"),
    ),
    "tabhelm.host.joined": ("JoinedTab", "Presence"),
    "tabhelm.leadership": (
        *("BackingOff", "Election", "Idle", "LeaderContext", "Leading", "State", "SteppingDown", "Stopped", "Waiting"),
    ),
    "tabhelm.leadership.breaker": ("CircuitBreaker",),
    "tabhelm.leadership.publishing": ("PublishedState",),
    "tabhelm.leadership.serving": ("Call",),
    "tabhelm.locking": ("Lock",),
    "tabhelm.observe": ("Metrics", "Reign"),
    "tabhelm.ports.database": ("Index", "KeyRange", "Store"),
    "tabhelm.queue": ("Batch", "Queue", "QueueStats"),
    "tabhelm.queue.records": ("Outcome",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    """A public name, from its room, when it is first asked for: a server that imports us pays for none of the page's,
    and the page only for what it uses."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
