"""The lease service, as an ASGI application: who leads a resource among the devices of one subject.

``POST …/{resource}`` ``{candidate, ttl_ms}`` is answered ``200 {token, expires_in_ms}`` or ``409 {holder,
expires_in_ms}``; ``DELETE …/{resource}?candidate=…`` gives it back. See docs/leases.md.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable

from tabhelm.errors import MalformedToken
from tabhelm.fencing.token import FencingToken
from tabhelm.server.arguments import checked
from tabhelm.server.asgi import Receive, Scope, Send, dispatch
from tabhelm.server.contract import PLAIN, Problem, malformed
from tabhelm.server.lease_metrics import LeaseCount, LeaseMetrics
from tabhelm.server.lease_requests import (
    EXHAUSTED,
    STREAM,
    TOO_MANY,
    Asked,
    Limits,
    granted,
    held,
    read_asked,
    read_candidate,
    read_resource,
)
from tabhelm.server.lease_rules import Ask, Exhausted, Granted, Held, Sights, acquire, release
from tabhelm.server.lease_store import Decide, LeaseKey, LeaseRecord, LeaseStore, TooManyLeases
from tabhelm.server.lease_waiting import Waiting
from tabhelm.server.requests import Answer, Requests
from tabhelm.server.store import R
from tabhelm.server.subjects import Authenticate, Owns, anything, everybody


class LeaseService:
    """Gives one candidate at a time the lease of a resource, for as long as it renews it.

    ``authenticate(scope)`` tells who asks, as for ``FencedReceiver``: leases of two subjects never meet, and nor do
    their tokens. It returns a name or raises ``Denied``, and may be ``async``. *A lease is not authentication.*
    ``owns(subject, resource)``, too, is as for ``FencedReceiver``: what is not the subject's is answered 403.

    A candidate may ask for a ``ttl_ms`` of ``min_ttl`` to ``max_ttl`` seconds, and to wait up to ``max_wait`` seconds
    for a lease that is taken (``wait_ms``); of those, ``max_waiting`` wait at a time, all others are answered at once.
    A subject has at most ``max_leases`` leases, for ever: their epochs may never come again. ``monotonic`` gives
    seconds.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        authenticate: Authenticate = everybody,
        owns: Owns = anything,
        min_ttl: float = 1.0,
        max_ttl: float = 600.0,
        max_wait: float = 10.0,
        max_waiting: int = 1000,
        max_leases: int = 1000,
        max_body: int = 4096,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < min_ttl <= max_ttl:
            raise ValueError(f"min_ttl {min_ttl!r} and max_ttl {max_ttl!r} are not valid: 0 < min_ttl <= max_ttl")
        checked("max_ttl", max_ttl, 0, "seconds")
        checked("max_waiting", max_waiting, 0, "requests")
        self.metrics = LeaseMetrics()
        self._store = store
        self._limits = Limits(min_ttl, max_ttl, checked("max_wait", max_wait, 0, "seconds"))
        self._max_leases = checked("max_leases", max_leases, 1, "lease")
        self._sights = Sights(monotonic)
        self._waiting = Waiting(self.metrics, max_waiting, monotonic)
        self._requests = Requests(self.metrics, authenticate, owns, max_body, what="lease service", done="changed")

    async def close(self) -> None:
        """Answer who waits, and close the store. An ASGI server does it by its lifespan; an app that mounts the service
        has to call it."""
        self._waiting.close()
        await self._store.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: any path; its last segment names the resource."""
        await dispatch(scope, receive, send, self._request, self.close)

    # -- one request --------------------------------------------------------------------------------------------------

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._requests.answer(send, self._answer(scope, receive), {"cache-control": "no-store"})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        method = scope["method"]
        if method not in ("POST", "DELETE"):
            allow = {"allow": "POST, DELETE"}
            raise Problem(405, PLAIN, "Only POST and DELETE are understood here", headers=allow)
        subject = await self._requests.subject(scope)
        with self._requests.reading():
            key = LeaseKey(subject, read_resource(scope))
        await self._requests.check_owner(*key)
        with self._requests.reading():
            if method == "DELETE":
                candidate = read_candidate(scope)
            else:
                self._requests.check_form(scope)
                asked = read_asked(await self._requests.body(scope, receive), self._limits)
                _require_owner(key.resource, asked.ask.candidate)
        if method == "DELETE":
            return {"released": await self._release(key, candidate)}, {}
        domain = await self._domain(key)
        outcome = await self._acquire(key, asked, receive)
        if isinstance(outcome, Held):
            self.metrics.count("refused", key.resource)
            raise held(outcome)
        return granted(domain, key.resource, outcome)

    # -- leases -------------------------------------------------------------------------------------------------------

    async def _acquire(self, key: LeaseKey, asked: Asked, receive: Receive) -> Granted | Held:
        ask = asked.ask
        outcome = await self._try(key, ask)
        if isinstance(outcome, Granted) or asked.wait <= 0 or self._waiting.is_full():
            return outcome
        return await self._waiting.wait(
            key,
            ask.candidate,
            asked.wait,
            outcome,
            attempt=lambda: self._try(key, ask),
            give_back=lambda: self._release(key, ask.candidate),
            receive=receive,
        )

    async def _try(self, key: LeaseKey, ask: Ask) -> Granted | Held:
        found: LeaseRecord | None = None

        def decide(record: LeaseRecord | None, now: float) -> tuple[LeaseRecord | None, Granted | Held]:
            nonlocal found
            found = record
            outcome = acquire(ask, record, now, self._sights.left(key, record, now))
            return (outcome.record, outcome) if isinstance(outcome, Granted) else (record, outcome)

        outcome = await self._change(key, decide)
        if isinstance(outcome, Granted):
            self._sights.note(key, outcome.record, own=True)
            how: dict[str, LeaseCount] = {"granted": "granted", "taken-over": "taken-over", "renewed": "renewed"}
            self.metrics.count(how[outcome.how], key.resource)
        elif found is not None:
            self._sights.note(key, found, own=False)
        return outcome

    async def _release(self, key: LeaseKey, candidate: str) -> bool:
        self._waiting.leave(key, candidate)

        def decide(record: LeaseRecord | None, now: float) -> tuple[LeaseRecord | None, bool]:
            after = release(candidate, record)
            return after, after is not record

        released = await self._change(key, decide)
        if released:
            self.metrics.count("released", key.resource)
            self._waiting.wake(key)
        return released

    async def _change(self, key: LeaseKey, decide: Decide[R]) -> R:
        return await self._asking(key.resource, self._store.change(key, decide, self._max_leases))

    async def _domain(self, key: LeaseKey) -> str:
        """One for each subject: also where a receiver takes all senders for one, their epochs are never compared."""
        domain = await self._asking(key.resource, self._store.domain())
        return hashlib.sha256(f"{domain}\0{key.subject}".encode()).hexdigest()[:32]

    async def _asking(self, resource: str, asking: Awaitable[R]) -> R:
        with self._requests.deciding(resource):
            try:
                return await asking
            except TooManyLeases as error:
                self.metrics.count("denied")
                raise Problem(403, TOO_MANY, "Too many leases", str(error)) from error
            except Exhausted as error:
                self.metrics.count("refused", resource)
                raise Problem(422, EXHAUSTED, "No epoch is left for this resource") from error


def _require_owner(resource: str, candidate: str) -> None:
    """A candidate is the owner in its tokens, so it has to fit into one.

    Raises:
        Problem: 400, it does not.
    """
    try:
        FencingToken("domain", resource, 1, STREAM, 1, candidate)
    except MalformedToken as error:
        raise malformed(str(error)) from error
