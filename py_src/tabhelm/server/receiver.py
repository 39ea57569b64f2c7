"""The receiving end of fenced writes, as an ASGI application."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from tabhelm.fencing.guard import StrictGuard
from tabhelm.server.asgi import (
    Disconnected,
    Receive,
    Repeated,
    Scope,
    Send,
    TooLarge,
    dispatch,
    header,
    only_header,
    read_body,
    respond,
    respond_to_nobody,
)
from tabhelm.server.contract import (
    BUSY,
    FAILED,
    KEY_REUSED,
    PLAIN,
    REJECTED,
    RETRY,
    Problem,
    Result,
    Write,
    malformed,
    read_token,
    read_write,
)
from tabhelm.server.effects import Effect
from tabhelm.server.logs import escaped, log
from tabhelm.server.metrics import UNKNOWN, ReceiverMetrics, What
from tabhelm.server.processing import Refused, perform
from tabhelm.server.retention import Sweeper
from tabhelm.server.store import FenceStore, StoreBusy
from tabhelm.server.subjects import Authenticate, everybody, subject_of

T = TypeVar("T")
DAY = 86_400.0
_BUSY_RETRY_AFTER = 1
_COUNTED: Mapping[str, What] = {
    "committed": "accepted",
    "duplicate": "duplicate",
    "rejected": "rejected",
    "retry": "retry",
    "skipped": "skipped",
}


class FencedReceiver(Generic[T]):
    """Applies each operation of its senders exactly once, and none of a sender that no longer leads.

    ``apply(effect, transaction)`` writes one operation's effect with what the store gives it (for SQLite the
    connection) and returns; it may raise ``Reject`` or ``Retry``. The fence check, the duplicate check and the effects
    of a request are committed in one transaction. ``apply`` runs in the store's thread, one call at a time: it must not
    wait for anything but the database, and must not commit.

    ``authenticate(scope)`` tells who sends a request: marks and operation ids of two subjects never meet. It returns a
    name or raises ``Denied``, and may be ``async``. *Fencing is not authentication*: a token says which of a subject's
    own tabs may write, and whoever can send a request can make one up.

    ``guard`` is ``StrictGuard()`` (default) or ``EpochGuard()``. Operation ids are remembered for ``retention``
    seconds, told to senders with each answer as ``Tabhelm-Retention``. ``clock`` gives seconds since 1970.

    A batch is answered 200 with a result for each operation, whatever became of it; an operation id that comes again
    with another payload is ``rejected`` there. A single operation, which comes with an ``Idempotency-Key``, is answered
    200 when it is committed or a duplicate, 422 when it is rejected or its key was used with another payload, 503 when
    it may be sent again.
    """

    def __init__(
        self,
        apply: Callable[[Effect, T], object],
        store: FenceStore[T],
        *,
        guard: StrictGuard | None = None,
        authenticate: Authenticate = everybody,
        retention: float = 30 * DAY,
        max_body: int = 4 * 2**20,
        max_operations: int = 1000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if inspect.iscoroutinefunction(apply):
            raise TypeError("apply must be a plain function: it runs inside the database transaction")
        if retention < 1:
            raise ValueError(f"retention {retention!r} is not valid: at least 1 second")
        self.metrics = ReceiverMetrics()
        self._apply = apply
        self._store = store
        self._guard = guard or StrictGuard()
        self._authenticate = authenticate
        self._retention = retention
        self._max_body = max_body
        self._max_operations = max_operations
        self._clock = clock
        self._sweeper = Sweeper(store, clock)

    async def close(self) -> None:
        """Close the store. An ASGI server does it by its lifespan; an app that mounts the receiver has to call it."""
        await self._store.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: any path; mount it where senders expect it."""
        await dispatch(scope, receive, send, self._request, self.close)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        common = {"tabhelm-retention": str(int(self._retention)), "cache-control": "no-store"}
        began = time.monotonic()
        try:
            results = await self._write(scope, receive)
            self.metrics.took(time.monotonic() - began)
            answer: dict[str, Any] = {"results": [result.to_json() for result in results]}
            await respond(send, 200, answer, "application/json", common)
        except Problem as problem:
            self.metrics.took(time.monotonic() - began)
            await respond(send, problem.status, problem.body, "application/problem+json", {**common, **problem.headers})
        except Disconnected:
            await respond_to_nobody(send)
        await self._sweeper.sweep()

    async def _write(self, scope: Scope, receive: Receive) -> list[Result]:
        if scope["method"] != "POST":
            raise Problem(405, PLAIN, "Only POST is understood here", headers={"allow": "POST"})
        resource = UNKNOWN
        try:
            self._check_form(scope)
            subject = await self._subject(scope)
            token = read_token(only_header(scope, "Fencing-Token"))
            resource = token.resource
            key = only_header(scope, "Idempotency-Key")
            body = await read_body(scope, receive, self._max_body)
            write = read_write(token, key, body, self._max_operations)
        except Repeated as error:
            self.metrics.count("malformed", resource)
            raise malformed(f"{error}: it must come once") from error
        except TooLarge as error:
            self.metrics.count("malformed", resource)
            raise Problem(413, PLAIN, "The body is too large", f"at most {self._max_body} bytes are read") from error
        except Problem as problem:
            if problem.status in (400, 413, 415):
                self.metrics.count("malformed", resource)
            raise
        results = await self._perform(write, subject)
        return self._single(write, results[0]) if write.single else results

    def _check_form(self, scope: Scope) -> None:
        media_type = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise Problem(415, PLAIN, "Content-Type must be application/json", f"it is {ascii(media_type)[:80]}")
        if (encoding := header(scope, b"content-encoding")) not in (None, "identity"):
            raise Problem(415, PLAIN, "The body must not be compressed", f"Content-Encoding is {ascii(encoding)[:80]}")

    async def _subject(self, scope: Scope) -> str:
        try:
            return await subject_of(self._authenticate, scope)
        except Problem:
            self.metrics.count("denied")
            raise

    async def _perform(self, write: Write, subject: str) -> list[Result]:
        resource = write.token.resource
        try:
            now = self._clock()
            results = await self._store.run(
                lambda transaction: perform(transaction, write, subject, self._guard, self._apply, now, self._retention)
            )
        except Refused as refusal:
            self.metrics.count("overtaken" if refusal.kind == "overtaken" else "stale", resource)
            raise refusal.problem from None
        except StoreBusy as error:
            self.metrics.count("busy", resource)
            log.warning("a write to %a has to come again: %s", resource, escaped(str(error)))
            headers = {"retry-after": str(_BUSY_RETRY_AFTER)}
            detail = (
                "It may have been applied: send it again to learn that." if error.unsure else "Nothing was applied."
            )
            raise Problem(503, BUSY, "The database is busy", detail, headers=headers) from error
        except Exception as error:
            self.metrics.count("failed", resource)
            log.exception("a write to %a failed", resource)
            raise Problem(500, FAILED, "The receiver failed", "Its log says why.") from error
        if not results:
            self.metrics.count("barrier", resource)
        for status, times in Counter(result.status for result in results).items():
            self.metrics.count(_COUNTED[status], resource, times)
        self._sweeper.owe(sum(result.status in ("committed", "rejected") for result in results))
        return results

    def _single(self, write: Write, result: Result) -> list[Result]:
        more = {"op_id": result.op_id}
        if result.status == "retry":
            after = _BUSY_RETRY_AFTER if result.after is None else result.after
            headers = {"retry-after": str(max(0, -int(-after // 1)))}
            raise Problem(503, RETRY, "Send this operation again later", result.detail, more=more, headers=headers)
        if result.status == "rejected":
            kind = KEY_REUSED if result.key_reused else REJECTED
            title = "The key was used with another payload" if result.key_reused else "The operation was rejected"
            raise Problem(422, kind, title, result.detail, more=more)
        return [result]
