"""The lease service, as an ASGI application: who leads a resource among the devices of one subject.

``POST …/{resource}`` ``{candidate, ttl_ms}`` is answered ``200 {token, expires_in_ms}`` or ``409 {holder,
expires_in_ms}``; ``DELETE …/{resource}?candidate=…`` gives it back. See docs/leases.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from tabhelm.errors import MalformedToken
from tabhelm.fencing.http_form import token_header
from tabhelm.fencing.token import MAX_NUMBER, FencingToken
from tabhelm.json_text import loads
from tabhelm.names import MAX_NAME
from tabhelm.server.asgi import (
    Disconnected,
    Receive,
    Scope,
    Send,
    TooLarge,
    dispatch,
    header,
    read_body,
    respond,
    respond_to_nobody,
)
from tabhelm.server.contract import BUSY, FAILED, PLAIN, Problem, malformed
from tabhelm.server.lease_metrics import LeaseCount, LeaseMetrics
from tabhelm.server.lease_rules import Ask, Exhausted, Granted, Held, Sights, acquire, release
from tabhelm.server.lease_store import Decide, LeaseKey, LeaseRecord, LeaseStore, TooManyLeases
from tabhelm.server.logs import escaped, log
from tabhelm.server.store import R, StoreBusy
from tabhelm.server.subjects import Authenticate, everybody, subject_of

HELD = "urn:tabhelm:lease-held"
EXHAUSTED = "urn:tabhelm:epochs-exhausted"
TOO_MANY = "urn:tabhelm:too-many-leases"
STREAM = "lease"
"""The stream of the tokens that the service gives: it is their one issuer."""
_RESOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?::[A-Za-z0-9][A-Za-z0-9._-]*)*\Z")
_LOOK_EVERY = 0.5
"""Seconds between two looks of a request that waits: another process may have given the lease back."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request that waits for a lease. ``gone``: nobody wants it any more."""

    news: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False

    def leave(self) -> None:
        self.gone = True
        self.news.set()


class LeaseService:
    """Gives one candidate at a time the lease of a resource, for as long as it renews it.

    ``authenticate(scope)`` tells who asks, as for ``FencedReceiver``: leases of two subjects never meet, and nor do
    their tokens. It returns a name or raises ``Denied``, and may be ``async``. *A lease is not authentication.*

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
        self.metrics = LeaseMetrics()
        self._store = store
        self._authenticate = authenticate
        self._min_ttl = min_ttl
        self._max_ttl = max_ttl
        self._max_wait = max_wait
        self._max_waiting = max_waiting
        self._max_leases = max_leases
        self._max_body = max_body
        self._monotonic = monotonic
        self._sights = Sights(monotonic)
        self._waiters: dict[LeaseKey, dict[_Waiter, str]] = {}

    async def close(self) -> None:
        """Answer who waits, and close the store. An ASGI server does it by its lifespan; an app that mounts the service
        has to call it."""
        for waiters in list(self._waiters.values()):
            for waiter in list(waiters):
                waiter.leave()
        await self._store.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: any path; its last segment names the resource."""
        await dispatch(scope, receive, send, self._request, self.close)

    # -- one request --------------------------------------------------------------------------------------------------

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        common = {"cache-control": "no-store"}
        try:
            body, headers = await self._answer(scope, receive)
            await respond(send, 200, body, "application/json", common | headers)
        except Problem as problem:
            await respond(send, problem.status, problem.body, "application/problem+json", common | problem.headers)
        except Disconnected:
            await respond_to_nobody(send)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[dict[str, Any], dict[str, str]]:
        method = scope["method"]
        if method not in ("POST", "DELETE"):
            allow = {"allow": "POST, DELETE"}
            raise Problem(405, PLAIN, "Only POST and DELETE are understood here", headers=allow)
        subject = await self._subject(scope)
        try:
            resource = _resource(scope)
            if method == "DELETE":
                return {"released": await self._release(LeaseKey(subject, resource), _candidate(scope))}, {}
            asked = await self._read(scope, receive)
            token = self._token(await self._domain(resource, subject), resource, asked.ask.candidate, 1, 1)
        except MalformedToken as error:
            self.metrics.count("malformed")
            raise malformed(str(error)) from error
        except Problem as problem:
            if problem.status == 400:
                self.metrics.count("malformed")
            raise
        outcome = await self._acquire(LeaseKey(subject, resource), asked, receive)
        if isinstance(outcome, Held):
            self.metrics.count("refused", resource)
            more = {"holder": outcome.holder, "expires_in_ms": math.ceil(outcome.left * 1000)}
            title = "Somebody else holds this lease" if outcome.holder else "Nobody holds this lease"
            raise Problem(409, HELD, title, more=more)
        return _granted(self._token(token.domain, resource, asked.ask.candidate, *_numbers(outcome.record)), outcome)

    async def _subject(self, scope: Scope) -> str:
        try:
            return await subject_of(self._authenticate, scope)
        except Problem:
            self.metrics.count("denied")
            raise

    async def _read(self, scope: Scope, receive: Receive) -> _Asked:
        media_type = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise Problem(415, PLAIN, "Content-Type must be application/json", f"it is {ascii(media_type)[:80]}")
        try:
            body = await read_body(scope, receive, self._max_body)
        except TooLarge as error:
            raise Problem(413, PLAIN, "The body is too large", f"at most {self._max_body} bytes are read") from error
        try:
            value = loads(body.decode())
        except ValueError as error:
            raise malformed(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise malformed('the body must be {"candidate": text, "ttl_ms": number}')
        ttl = _number(value, "ttl_ms", self._min_ttl * 1000, self._max_ttl * 1000)
        wait = _number(value, "wait_ms", 0, 3_600_000, 0)
        above = _number(value, "above", 0, MAX_NUMBER - 2, 0)
        if above != int(above):
            raise malformed(f"above {value['above']!r} is not valid: a whole number is expected")
        candidate = value.get("candidate")
        if not isinstance(candidate, str):
            raise malformed(f"candidate {ascii(candidate)[:80]} is not valid: a text is expected")
        renew = value.get("renew", False)
        if not isinstance(renew, bool):
            raise malformed(f"renew {ascii(renew)[:40]} is not valid: true or false is expected")
        # Whoever renews has it, or has lost it: nothing to wait for.
        patience = 0.0 if renew else min(wait / 1000, self._max_wait)
        return _Asked(Ask(candidate, ttl / 1000, int(above), renew), patience)

    # -- leases -------------------------------------------------------------------------------------------------------

    async def _acquire(self, key: LeaseKey, asked: _Asked, receive: Receive) -> Granted | Held:
        outcome = await self._try(key, asked.ask)
        if isinstance(outcome, Granted) or asked.wait <= 0 or self.metrics.waiting >= self._max_waiting:
            return outcome
        waiter = _Waiter()
        self._waiters.setdefault(key, {})[waiter] = asked.ask.candidate
        self.metrics.waiting += 1
        watching = asyncio.ensure_future(_gone(receive, waiter))
        try:
            return await self._wait(key, asked, waiter, outcome)
        finally:
            watching.cancel()
            self.metrics.waiting -= 1
            del self._waiters[key][waiter]
            if not self._waiters[key]:
                del self._waiters[key]

    async def _wait(self, key: LeaseKey, asked: _Asked, waiter: _Waiter, outcome: Held) -> Granted | Held:
        end = self._monotonic() + asked.wait
        while (left := end - self._monotonic()) > 0 and not waiter.gone:
            # Not all of them at the same moment, and the expiry itself is worth a look.
            pause = min(_LOOK_EVERY * random.uniform(0.8, 1.2), outcome.left + 0.001, left)
            try:
                await asyncio.wait_for(waiter.news.wait(), pause)
            except TimeoutError:
                pass
            if waiter.gone:
                break
            waiter.news.clear()
            found = await self._try(key, asked.ask)
            if isinstance(found, Granted):
                if waiter.gone:
                    await self._release(key, asked.ask.candidate)
                    break
                return found
            outcome = found
        return outcome

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
        for waiter, waits_for in list(self._waiters.get(key, {}).items()):
            if waits_for == candidate:
                waiter.leave()

        def decide(record: LeaseRecord | None, now: float) -> tuple[LeaseRecord | None, bool]:
            after = release(candidate, record)
            return after, after is not record

        released = await self._change(key, decide)
        if released:
            self.metrics.count("released", key.resource)
            for waiter in self._waiters.get(key, {}):
                waiter.news.set()
        return released

    async def _change(self, key: LeaseKey, decide: Decide[R]) -> R:
        return await self._asking(key.resource, self._store.change(key, decide, self._max_leases))

    async def _domain(self, resource: str, subject: str) -> str:
        """One for each subject: also where a receiver takes all senders for one, their epochs are never compared."""
        domain = await self._asking(resource, self._store.domain())
        return hashlib.sha256(f"{domain}\0{subject}".encode()).hexdigest()[:32]

    async def _asking(self, resource: str, asking: Awaitable[R]) -> R:
        try:
            return await asking
        except StoreBusy as error:
            self.metrics.count("busy", resource)
            log.warning("a lease could not be decided on: %s", escaped(str(error)))
            headers = {"retry-after": "1"}
            detail = "It may have been changed: ask again to learn that." if error.unsure else "Nothing was changed."
            raise Problem(503, BUSY, "The database is busy", detail, headers=headers) from error
        except TooManyLeases as error:
            self.metrics.count("denied")
            raise Problem(403, TOO_MANY, "Too many leases", str(error)) from error
        except Exhausted as error:
            raise Problem(422, EXHAUSTED, "No epoch is left for this resource") from error
        except Exception as error:
            self.metrics.count("failed", resource)
            log.exception("a lease could not be decided on")
            raise Problem(500, FAILED, "The lease service failed", "Its log says why.") from error

    def _token(self, domain: str, resource: str, candidate: str, epoch: int, seq: int) -> FencingToken:
        return FencingToken(domain, resource, epoch, STREAM, seq, candidate)


@dataclass(frozen=True, slots=True)
class _Asked:
    ask: Ask
    wait: float
    """Seconds."""


def _granted(token: FencingToken, granted: Granted) -> tuple[dict[str, Any], dict[str, str]]:
    shown = {
        "domain": token.domain,
        "resource": token.resource,
        "epoch": token.epoch,
        "stream": token.stream,
        "seq": token.seq,
        "owner": token.owner_id,
    }
    body = {"token": shown, "expires_in_ms": math.floor(granted.record.ttl * 1000)}
    return body, {"fencing-token": token_header(token)}


def _numbers(record: LeaseRecord) -> tuple[int, int]:
    return record.epoch, record.seq


def _resource(scope: Scope) -> str:
    path, raw = scope["path"], scope.get("raw_path")
    # As it was written: a "%2F" inside it is part of a wrong name, and not the end of a segment.
    name: str = unquote(raw.rpartition(b"/")[2].decode("latin-1")) if raw else path.rpartition("/")[2]
    if len(name) > MAX_NAME or not _RESOURCE.match(name):
        raise malformed(
            f"resource {ascii(name)[:80]} is not valid: names of letters, digits, '.', '_' and '-', joined by ':'"
        )
    return name


def _candidate(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    given = parse_qs(query.decode("latin-1")).get("candidate", [])
    if len(given) != 1:
        raise malformed("DELETE …?candidate=… is expected: whose lease is given back")
    return given[0]


def _number(value: dict[str, Any], name: str, least: float, most: float, default: float | None = None) -> float:
    given = value.get(name, default)
    if not isinstance(given, int | float) or isinstance(given, bool) or not least <= given <= most:
        raise malformed(f"{name} {ascii(given)[:40]} is not valid: a number of {least:.15g} to {most:.15g} is expected")
    return float(given)


async def _gone(receive: Receive, waiter: _Waiter) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    waiter.leave()
