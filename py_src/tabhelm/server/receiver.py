"""The receiving end of fenced writes, as an ASGI application."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from tabhelm.fencing.guard import StrictGuard
from tabhelm.server.arguments import checked
from tabhelm.server.asgi import Receive, Scope, Send, dispatch, only_header
from tabhelm.server.contract import KEY_REUSED, PLAIN, REJECTED, RETRY, Problem, Result, Write, read_token, read_write
from tabhelm.server.effects import Effect
from tabhelm.server.metrics import ReceiverMetrics, What
from tabhelm.server.processing import Refused, perform
from tabhelm.server.requests import BUSY_RETRY_AFTER, Answer, Requests
from tabhelm.server.retention import Sweeper
from tabhelm.server.store import FenceStore
from tabhelm.server.subjects import Authenticate, Owns, anything, everybody

T = TypeVar("T")
DAY = 86_400.0
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

    ``owns(subject, resource)`` tells whether the resource of the token is this subject's. If not, the answer is 403,
    on which a queue pauses: so that the work of one user is never applied as that of the next one, who has signed in
    with the same cookies in another tab. It may be ``async``. By default there is no such rule.

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
        owns: Owns = anything,
        retention: float = 30 * DAY,
        max_body: int = 4 * 2**20,
        max_operations: int = 1000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if inspect.iscoroutinefunction(apply):
            raise TypeError("apply must be a plain function: it runs inside the database transaction")
        self.metrics = ReceiverMetrics()
        self._apply = apply
        self._store = store
        self._guard = guard or StrictGuard()
        self._retention = checked("retention", retention, 1, "second")
        self._max_operations = checked("max_operations", max_operations, 1, "operation")
        self._clock = clock
        self._sweeper = Sweeper(store, clock)
        self._requests = Requests(self.metrics, authenticate, owns, max_body, what="receiver", done="applied")

    async def close(self) -> None:
        """Close the store. An ASGI server does it by its lifespan; an app that mounts the receiver has to call it."""
        await self._store.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: any path; mount it where senders expect it."""
        await dispatch(scope, receive, send, self._request, self.close)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        common = {"tabhelm-retention": str(int(self._retention)), "cache-control": "no-store"}
        await self._requests.answer(send, self._answer(scope, receive), common)
        await self._sweeper.sweep()

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        began = time.monotonic()
        try:
            results = await self._write(scope, receive)
        except Problem:
            self.metrics.took(time.monotonic() - began)
            raise
        self.metrics.took(time.monotonic() - began)
        return {"results": [result.to_json() for result in results]}, {}

    async def _write(self, scope: Scope, receive: Receive) -> list[Result]:
        if scope["method"] != "POST":
            raise Problem(405, PLAIN, "Only POST is understood here", headers={"allow": "POST"})
        with self._requests.reading():
            self._requests.check_form(scope)
        subject = await self._requests.subject(scope)
        with self._requests.reading():
            token = read_token(only_header(scope, "Fencing-Token"))
        await self._requests.check_owner(subject, token.resource)
        with self._requests.reading(token.resource):
            key = only_header(scope, "Idempotency-Key")
            body = await self._requests.body(scope, receive)
            write = read_write(token, key, body, self._max_operations)
        results = await self._perform(write, subject)
        return self._single(write, results[0]) if write.single else results

    async def _perform(self, write: Write, subject: str) -> list[Result]:
        resource, now = write.token.resource, self._clock()
        with self._requests.deciding(resource):
            try:
                results = await self._store.run(
                    lambda opened: perform(opened, write, subject, self._guard, self._apply, now, self._retention)
                )
            except Refused as refusal:
                self.metrics.count("overtaken" if refusal.kind == "overtaken" else "stale", resource)
                raise refusal.problem from None
        if not results:
            self.metrics.count("barrier", resource)
        for status, times in Counter(result.status for result in results).items():
            self.metrics.count(_COUNTED[status], resource, times)
        self._sweeper.owe(sum(result.status in ("committed", "rejected") for result in results))
        return results

    def _single(self, write: Write, result: Result) -> list[Result]:
        more = {"op_id": result.op_id}
        if result.status == "retry":
            after = BUSY_RETRY_AFTER if result.after is None else result.after
            headers = {"retry-after": str(max(0, -int(-after // 1)))}
            raise Problem(503, RETRY, "Send this operation again later", result.detail, more=more, headers=headers)
        if result.status == "rejected":
            kind = KEY_REUSED if result.key_reused else REJECTED
            title = "The key was used with another payload" if result.key_reused else "The operation was rejected"
            raise Problem(422, kind, title, result.detail, more=more)
        return [result]
