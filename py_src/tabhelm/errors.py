"""Everything that tabhelm raises on purpose, as one tree.

TabhelmError
├── InvalidName            (ValueError)   a part of a lock, channel or resource name is not allowed
├── InvalidPolicy          (ValueError)   a policy holds an unknown key or an impossible combination
├── InvalidPayload         (ValueError)   an operation's payload cannot be stored or sent
├── InvalidOptions         (ValueError)   a queue was opened with an unknown option, a wrong value or a contradiction
├── QueueFull                             a queue holds as much as its limits allow; nothing was stored
├── WrongResource          (ValueError)   a queue was to be flushed under another resource's leadership
├── MalformedToken         (ValueError)   a fencing token or its header cannot be read
├── StaleOwner                            a newer owner was seen where the token was shown; carries the high water
├── LeadershipLost                        this holder no longer leads: its token is revoked, its loop must end
│   └── SplitAuthority                    another live authority owns the resource's epoch record
├── NotInBrowser           (RuntimeError) a tab can only be joined from Python that runs in a page or its worker
├── NoAuthority                           nothing on the policy's list can decide here
├── LeaseRefused                          a lease service gave an answer that is none
├── NotFenced                             the authority gives no tokens, so nothing can be fenced
├── LockWithdrawn                         a lock request was taken back (its owner left, froze or was dropped)
├── LockLost                              a lock ended while its body was running: the tab froze, hung, left, was robbed
├── LockTimeout            (TimeoutError) a lock was not free in time; names its holder and for how long, if known
├── LockUnavailable                       a lock that was wanted at once, or not at all, is taken
├── LockReentered          (RuntimeError) code that holds a lock asked for it again: it would wait for itself
├── TooManyLocks                          a page holds and waits for more locks than it may
├── FlightFailed                          what another tab did for all of us (single flight) raised; names its error
├── NotCloneable           (TypeError)    a value cannot go to another tab; the message names the place inside it
├── DatabaseError                         storage: the base of what follows
│   ├── DatabaseClosed                    the connection was closed under the transaction; open again and retry
│   ├── DatabaseBlocked                   another connection keeps the database from being opened
│   ├── DatabaseNewer                     a later release has upgraded the database: reload the page
│   ├── DatabaseDenied                    this context may not use IndexedDB (opaque origin, private window)
│   ├── QuotaExceeded                     the origin's storage is full; nothing was written
│   ├── KeyExists                         a record with this unique key is already there
│   └── ForeignAwait       (RuntimeError) a transaction body awaited something that is not its transaction's
├── Unreachable                           an HTTP request got no answer: its outcome is unknown
├── NoHeaders                             the app's own headers for a request could not be had; it was not sent
├── IdentifierReused       (ValueError)   an operation id came again with another payload
├── AlreadyStanding        (ValueError)   this tab stands for the resource already
├── CircuitOpen                           a leader's downstream dependency failed too often; it is not asked now
├── InvalidTransition      (RuntimeError) an election was to take a step that its table does not hold
├── ElectionStopped                       the election is over: the state that was waited for will not come
├── EngineLost                            the engine that answered us is gone; the caller may try again
├── NotJoined              (RuntimeError) the tab left, or has not joined yet
├── NoLeader                              nobody led, within the time given: the question was not asked
├── LeaderChanged                         the leader that was asked leads no more; ``outcome``: may it have acted?
├── AskTimeout             (TimeoutError) the leader did not answer in time; whether it acted is unknown
├── NoHandler              (LookupError)  the leader serves no method of this name
├── HandlerFailed                         the leader's handler raised; carries that error's name and text
├── AskRefused                            the leader's handler refused
├── TooManyCalls                          more questions are open than are allowed; this one was not asked
├── LoopNotFound           (LookupError)  a Python leader loop ``package.module:function`` cannot be found
├── PageLoopFailed                        a page's leader loop threw
├── PageFunctionFailed                    a page's own function that a queue needs threw
└── MalformedMessage       (ValueError)   a page said something to its engine that cannot be used

Base classes other than ``TabhelmError`` mark programming errors by the nearest builtin, so that code which catches
``ValueError`` keeps working. Catch ``LeadershipLost`` around protected work, ``DatabaseError`` around ``enqueue``.
"""

from __future__ import annotations


class TabhelmError(Exception):
    """Base of every error that tabhelm raises on purpose."""

    code = "tabhelm"
    """A short stable word for the wire and for logs; never match on message texts."""


class InvalidName(TabhelmError, ValueError):
    """A part of a name is not allowed; the message names the part and its value."""

    code = "invalid-name"


class InvalidPolicy(TabhelmError, ValueError):
    """A policy holds an unknown key, a wrong type or an impossible combination; the message names the key."""

    code = "invalid-policy"


class InvalidPayload(TabhelmError, ValueError):
    """An operation's payload cannot be stored or sent; the message names the path inside it."""

    code = "invalid-payload"


class InvalidOptions(TabhelmError, ValueError):
    """A queue's options hold an unknown key, a wrong value or an impossible combination; the message names the key."""

    code = "invalid-options"


class QueueFull(TabhelmError):
    """A queue holds as many operations, or bytes, as its options allow. Nothing of the call was stored; wait until some
    are sent, remove dead letters, or raise the limit. ``limit`` names the option."""

    code = "queue-full"

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class WrongResource(TabhelmError, ValueError):
    """A queue is flushed by its own resource's leader only; the message names both resources."""

    code = "wrong-resource"


class MalformedToken(TabhelmError, ValueError):
    """A fencing token or its header cannot be read; the message names the thing and what was expected."""

    code = "malformed-token"


class StaleOwner(TabhelmError):
    """A newer owner was seen where the token was shown: nothing may be written with it.

    ``resource`` is the token's; ``epoch``, ``owner_id`` and ``seq`` are the high water, ``seq`` that of the token's
    stream. ``overtaken``: it was the same owner, with a later token of the same stream; a new token will do.
    """

    code = "stale-owner"

    def __init__(self, message: str, *, resource: str, epoch: int, owner_id: str, seq: int, overtaken: bool) -> None:
        super().__init__(message)
        self.resource = resource
        self.epoch = epoch
        self.owner_id = owner_id
        self.seq = seq
        self.overtaken = overtaken


class LeadershipLost(TabhelmError):
    """This holder no longer leads. ``reason`` is the same short word that its status event carries."""

    code = "leadership-lost"

    def __init__(self, resource: str, reason: str) -> None:
        super().__init__(f"no longer the leader of {resource!r}: {reason}")
        self.resource = resource
        self.reason = reason


class SplitAuthority(LeadershipLost):
    """The epoch record of the resource belongs to another live authority; this side must back off."""

    code = "split-authority"


class NotInBrowser(TabhelmError, RuntimeError):
    """``join()`` was called by a Python that runs neither in a page nor in a page's worker."""

    code = "not-in-browser"


class NoAuthority(TabhelmError):
    """None of the policy's authorities is possible in this context; the message names what is missing."""

    code = "no-authority"


class NotFenced(TabhelmError):
    """The authority in use issues no tokens; protected writes are refused."""

    code = "not-fenced"


class LockWithdrawn(TabhelmError):
    """A lock request was taken back before it was granted. Not a failure of the lock: ask again when allowed."""

    code = "lock-withdrawn"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the request for lock {name!r} was withdrawn: {reason}")
        self.name = name
        self.reason = reason


class LockLost(TabhelmError):
    """A lock ended while its body was running; from then on another tab may hold it. ``reason`` is one short word:
    ``frozen``, ``stalled``, ``closing``, ``lock-stolen``, ``lock-lost`` or why the tab left."""

    code = "lock-lost"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"lock {name!r} is held no more: {reason}")
        self.name = name
        self.reason = reason


class LockTimeout(TabhelmError, TimeoutError):
    """A lock was not free in time. ``holder`` is the id of the tab that held it, ``held_for`` for how long (seconds),
    as far as they are known."""

    code = "lock-timeout"

    def __init__(self, message: str, *, name: str, holder: str | None = None, held_for: float | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.holder = holder
        self.held_for = held_for


class LockUnavailable(TabhelmError):
    """The lock is taken, and was wanted only if it was free."""

    code = "lock-unavailable"

    def __init__(self, name: str) -> None:
        super().__init__(f"lock {name!r} is taken, and was asked for only if it is available")
        self.name = name


class LockReentered(TabhelmError, RuntimeError):
    """Code that holds a lock asked for the same lock: it would wait for itself for ever."""

    code = "lock-reentered"


class TooManyLocks(TabhelmError):
    """A page holds and waits for more locks than it may at a time."""

    code = "too-many-locks"


class FlightFailed(TabhelmError):
    """What another tab did for all that asked for it failed there. ``kind`` is the name of its error, ``reason`` that
    error's message, ``origin`` its code where it had one."""

    code = "flight-failed"

    def __init__(self, key: str, kind: str, reason: str, origin: str = "") -> None:
        super().__init__(f"{kind}: {reason} (in the tab that ran {key!r} for all)")
        self.key = key
        self.kind = kind
        self.reason = reason
        self.origin = origin


class NotCloneable(TabhelmError, TypeError):
    """A value cannot go to another tab: JSON cannot hold it, or it is too large. The message names the place in it."""

    code = "not-cloneable"


class DatabaseError(TabhelmError):
    """IndexedDB did not do what was asked; nothing of the transaction was written."""

    code = "database"
    op_ids: tuple[str, ...] = ()
    """Of the operations that were to be enqueued: the same may be enqueued again under the same ids."""


class DatabaseClosed(DatabaseError):
    """The connection was closed under the transaction (storage wiped, upgrade, browser). The next one opens anew."""

    code = "database-closed"


class DatabaseBlocked(DatabaseError):
    """The database did not open in time: another connection is in the way, or the browser never answered."""

    code = "database-blocked"


class DatabaseNewer(DatabaseError):
    """The database has a higher version than this code knows: a later release upgraded it. Only a reload helps."""

    code = "database-newer"


class DatabaseDenied(DatabaseError):
    """This context has no IndexedDB (opaque origin, private window, storage blocked by a setting)."""

    code = "database-denied"


class QuotaExceeded(DatabaseError):
    """The origin's storage is full. Nothing was written; free space or ask for persistent storage."""

    code = "quota-exceeded"


class KeyExists(DatabaseError):
    """``add`` met a record with the same key or the same unique index value; the transaction was aborted."""

    code = "key-exists"


class ForeignAwait(DatabaseError, RuntimeError):
    """A transaction body awaited something other than its own transaction's requests; it was aborted."""

    code = "foreign-await"


class Unreachable(TabhelmError):
    """No answer came: the network failed, the time ran out, or the request was aborted. Its outcome is unknown.
    ``offline``: the browser says that there is no network."""

    code = "unreachable"

    def __init__(self, message: str = "", *, offline: bool = False) -> None:
        super().__init__(message)
        self.offline = offline


class LeaseRefused(TabhelmError):
    """A lease service answered, but neither gave the lease nor said who has it; the message says what it did."""

    code = "lease-refused"


class NoHeaders(TabhelmError):
    """The app's own headers for a request could not be had: its function failed, took too long, or gave something else.
    Nothing was sent; the message names the option."""

    code = "no-headers"


class IdentifierReused(TabhelmError, ValueError):
    """An operation id was given again with another payload; the first operation stands, this one was refused."""

    code = "identifier-reused"


class AlreadyStanding(TabhelmError, ValueError):
    """One tab is one candidate for a resource: share its election, or stop it first. The message names the resource."""

    code = "already-standing"


class CircuitOpen(TabhelmError):
    """A circuit breaker is open: the call was not made. ``retry_in``: seconds until the next one is tried."""

    code = "circuit-open"

    def __init__(self, name: str, retry_in: float) -> None:
        super().__init__(f"the circuit {name!r} is open after repeated failures: try again in {retry_in:.3g} s")
        self.name = name
        self.retry_in = retry_in


class InvalidTransition(TabhelmError, RuntimeError):
    """An election was to take a step that its table does not hold: a fault in tabhelm. Both states are named."""

    code = "invalid-transition"


class ElectionStopped(TabhelmError):
    """The election is over (it was stopped, or its tab left), so the awaited state will not come."""

    code = "election-stopped"

    def __init__(self, resource: str, reason: str) -> None:
        super().__init__(f"the election for {resource!r} has stopped ({reason}): stand again with tab.lead()")
        self.resource = resource
        self.reason = reason


class EngineLost(TabhelmError):
    """The engine that was to answer is gone. Whether the call had an effect is unknown; it may be repeated."""

    code = "engine-lost"


class NotJoined(TabhelmError, RuntimeError):
    """The tab has left, or never joined; join again."""

    code = "not-joined"


class NoLeader(TabhelmError):
    """Nobody led the resource within the time given. The question was not asked: nothing happened."""

    code = "no-leader"

    def __init__(self, resource: str, seconds: float) -> None:
        super().__init__(f"nobody led {resource!r} within {seconds:g} s: nothing was asked")
        self.resource = resource


class LeaderChanged(TabhelmError):
    """The leader that was asked leads no more. ``outcome`` is ``unknown`` (it may have acted) or ``not-sent``."""

    code = "leader-changed"

    def __init__(self, resource: str, method: str, outcome: str) -> None:
        what = "it may have acted" if outcome == "unknown" else "it had not begun, and nobody followed in time"
        super().__init__(f"the leader of {resource!r} that was asked for {method!r} leads no more: {what}")
        self.resource = resource
        self.method = method
        self.outcome = outcome


class AskTimeout(TabhelmError, TimeoutError):
    """The leader did not answer in time. Whether it acted, or still will, is unknown (``outcome``)."""

    code = "ask-timeout"
    outcome = "unknown"

    def __init__(self, resource: str, method: str, seconds: float) -> None:
        super().__init__(f"the leader of {resource!r} did not answer {method!r} within {seconds:g} s: outcome unknown")
        self.resource = resource
        self.method = method


class NoHandler(TabhelmError, LookupError):
    """The leader serves no method of this name; the message names those that it serves."""

    code = "no-handler"


class HandlerFailed(TabhelmError):
    """The leader's handler raised: ``name``, ``detail`` and ``handler_code`` (if it had one) are that error's own."""

    code = "handler-failed"

    def __init__(self, resource: str, method: str, name: str, detail: str, handler_code: str | None = None) -> None:
        super().__init__(f"the leader of {resource!r} failed at {method!r}: {name}: {detail}")
        self.resource = resource
        self.method = method
        self.name = name
        self.detail = detail
        self.handler_code = handler_code


class AskRefused(TabhelmError):
    """The leader's handler refused to do it for this tab; the message is the handler's."""

    code = "ask-refused"


class TooManyCalls(TabhelmError):
    """More questions are open than are allowed, here or at the leader. This one was not asked."""

    code = "too-many-calls"


class LoopNotFound(TabhelmError, LookupError):
    """A Python leader loop could not be imported; the message names the reference and what went wrong."""

    code = "loop-not-found"


class PageLoopFailed(TabhelmError):
    """A page's leader loop threw; the message is the page's."""

    code = "loop-failed"


class PageFunctionFailed(TabhelmError):
    """A function of a page's that a queue needs (its sender, its headers) threw; the message is that error's."""

    code = "page-function-failed"


class MalformedMessage(TabhelmError, ValueError):
    """A page's message to its engine cannot be used; names the field."""

    code = "malformed-message"
