"""What receiver and lease service do alike with a request: let it in, read it, ask the database, answer."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from tabhelm.server.arguments import checked
from tabhelm.server.asgi import (
    Disconnected,
    Receive,
    Repeated,
    Scope,
    Send,
    TooLarge,
    header,
    read_body,
    respond,
    respond_to_nobody,
)
from tabhelm.server.contract import BUSY, FAILED, PLAIN, Problem, malformed
from tabhelm.server.counters import UNKNOWN, Counters
from tabhelm.server.logs import escaped, log
from tabhelm.server.store import StoreBusy
from tabhelm.server.subjects import Authenticate, Owns, check_owner, subject_of

BUSY_RETRY_AFTER = 1
"""Seconds."""
Answer = tuple[dict[str, Any], dict[str, str]]
"""Body and headers of a 200."""


class Requests:
    """The part of an application that does not depend on what is asked for. Whatever is refused here is counted.

    ``what`` names the application, ``done`` what it does to the database (``"applied"``), for texts. ``max_body`` in
    bytes.
    """

    def __init__(
        self,
        metrics: Counters[Any],
        authenticate: Authenticate,
        owns: Owns,
        max_body: int,
        *,
        what: Literal["receiver", "lease service"],
        done: str,
    ) -> None:
        self._metrics = metrics
        self._authenticate = authenticate
        self._owns = owns
        self._max_body = checked("max_body", max_body, 1, "byte")
        self._what = what
        self._done = done

    async def subject(self, scope: Scope) -> str:
        """Who sends it.

        Raises:
            Problem: 401 or 403.
        """
        try:
            return await subject_of(self._authenticate, scope)
        except Problem:
            self._metrics.count("denied")
            raise

    async def check_owner(self, subject: str, resource: str) -> None:
        """Is it theirs?

        Raises:
            Problem: 403, it is not; or as ``owns`` said.
        """
        try:
            await check_owner(self._owns, subject, resource)
        except Problem:
            self._metrics.count("denied", resource)
            raise

    def check_form(self, scope: Scope) -> None:
        """Is it JSON as it stands? Other sites' pages may send forms and plain text without asking anybody.

        Raises:
            Problem: 415.
        """
        media_type = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise Problem(415, PLAIN, "Content-Type must be application/json", f"it is {ascii(media_type)[:80]}")
        if (encoding := header(scope, b"content-encoding")) not in (None, "identity"):
            raise Problem(415, PLAIN, "The body must not be compressed", f"Content-Encoding is {ascii(encoding)[:80]}")

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body.

        Raises:
            TooLarge, Disconnected: see ``read_body``.
        """
        return await read_body(scope, receive, self._max_body)

    @contextmanager
    def reading(self, resource: str = UNKNOWN) -> Iterator[None]:
        """Around what reads a request: it is answered and counted that it cannot be read.

        Raises:
            Problem: 400, 413 or 415.
        """
        try:
            yield
        except Repeated as error:
            self._metrics.count("malformed", resource)
            raise malformed(f"{error}: it must come once") from error
        except TooLarge as error:
            self._metrics.count("malformed", resource)
            raise Problem(413, PLAIN, "The body is too large", f"at most {self._max_body} bytes are read") from error
        except Problem as problem:
            if problem.status in (400, 413, 415):
                self._metrics.count("malformed", resource)
            raise

    @contextmanager
    def deciding(self, resource: str) -> Iterator[None]:
        """Around what asks the database. A ``Problem`` is an answer, and comes out as it is.

        Raises:
            Problem: 503 or 500 for whatever else is raised.
        """
        try:
            yield
        except Problem:
            raise
        except StoreBusy as error:
            self._metrics.count("busy", resource)
            said = escaped(str(error))
            log.warning("the %s could not decide on %a, it has to be asked again: %s", self._what, resource, said)
            detail = f"Nothing was {self._done}."
            if error.unsure:
                detail = f"It may have been {self._done}: ask again to learn that."
            headers = {"retry-after": str(BUSY_RETRY_AFTER)}
            raise Problem(503, BUSY, "The database is busy", detail, headers=headers) from error
        except Exception as error:
            self._metrics.count("failed", resource)
            log.exception("the %s failed on %a", self._what, resource)
            raise Problem(500, FAILED, f"The {self._what} failed", "Its log says why.") from error

    async def answer(self, send: Send, answering: Awaitable[Answer], common: Mapping[str, str]) -> None:
        """Send what ``answering`` returns or raises, with ``common`` headers."""
        try:
            body, headers = await answering
            await respond(send, 200, body, "application/json", {**common, **headers})
        except Problem as problem:
            await respond(send, problem.status, problem.body, "application/problem+json", {**common, **problem.headers})
        except Disconnected:
            await respond_to_nobody(send)
