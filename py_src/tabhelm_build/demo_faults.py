"""Faults on order: makes the demo's receiver late, failing or silent, and logs every write. For chaos only.

``POST /api/faults`` with a JSON object replaces the faults in force; ``{}`` ends them. Keys:

``delay_ms``        wait before anything else happens
``hold``            read the request, apply it only once ``{"release": true}`` comes (its sender may be gone by then)
``release``         let every held request go on; requests that ``{}`` or other faults leave held stay held
``stall``           never answer and never apply
``status``          answer so without applying; ``body`` (a text is sent as HTML, anything else as JSON),
                    ``retry_after_s`` and ``location`` go with it, or stand for 200, 503 and 302
``drop_answers``    apply, then break the connection without an answer. A browser may send the same request again by
                    itself if it used a kept-alive connection; the receiver refuses that as overtaken
``cut_answers``     apply, and break the connection in the middle of the answer's body
``twice``           hand the request to the receiver twice and answer what it says the second time, as a proxy does that
                    lost the first answer and asks again
``echo_ms``         so long after the answer hand the same request to the receiver once more, for nobody to hear: a
                    copy that the network kept. Its entry in the log has ``"echo": true``
``resource``        only requests whose token is of this resource are touched
``containing``      only requests whose body holds this text are touched; others count for ``count``, though
``count``           how many requests are touched; without it, all until the next change

``GET /api/faults`` tells what is in force and how many requests are held. A request is touched by the faults in force
when it arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tabhelm.errors import MalformedToken
from tabhelm.fencing.http_form import parse_token_header

ABORT = "tabhelm.abort"
"""The scope extension of our web server that breaks a connection: ASGI itself has no way to give no answer."""
_MAX_READ = 8 * 2**20
_MAX_LOG = 10_000


@dataclass(frozen=True, slots=True)
class Faults:
    """See the module's text."""

    delay_ms: float = 0
    hold: bool = False
    stall: bool = False
    status: int | None = None
    body: Any = None
    retry_after_s: float | None = None
    location: str | None = None
    drop_answers: bool = False
    cut_answers: bool = False
    twice: bool = False
    echo_ms: float | None = None
    resource: str | None = None
    containing: str | None = None
    count: int | None = None

    def answer(self) -> int | None:
        """The status to answer with instead of applying; ``None``: apply."""
        implied = ((self.location, 302), (self.retry_after_s, 503), (self.body, 200))
        return self.status or next((status for given, status in implied if given is not None), None)

    @classmethod
    def read(cls, wanted: object) -> Faults:
        """Raises ``ValueError`` that names the key."""
        if not isinstance(wanted, dict):
            raise ValueError("faults are a JSON object")
        known = {field.name for field in fields(cls)}
        for key, value in wanted.items():
            if key not in known:
                raise ValueError(f"there is no fault {key!r}; known are {', '.join(sorted(known | {'release'}))}")
            if key in ("hold", "stall", "drop_answers", "cut_answers", "twice") and not isinstance(value, bool):
                raise ValueError(f"{key} must be true or false, not {value!r}")
            if key in ("delay_ms", "retry_after_s", "echo_ms") and not (_number(value) and value >= 0):
                raise ValueError(f"{key} must be a number of at least 0, not {value!r}")
            if key == "status" and not (_whole(value) and 200 <= value <= 599):
                raise ValueError(f"status must be a whole number of 200 to 599, not {value!r}")
            if key == "count" and not (_whole(value) and value >= 1):
                raise ValueError(f"count must be a whole number of at least 1, not {value!r}")
            if key in ("location", "resource", "containing") and not isinstance(value, str):
                raise ValueError(f"{key} must be a text, not {value!r}")
        return cls(**wanted)


class FaultyReceiver:
    """An ASGI application around the receiver."""

    def __init__(self, receiver: ASGIApp) -> None:
        self._receiver = receiver
        self._faults = Faults()
        self._released = asyncio.Event()
        self._held = 0
        self._waiting: set[asyncio.Task[Any]] = set()
        self._echoes: set[asyncio.Task[None]] = set()
        self.log: deque[dict[str, Any]] = deque(maxlen=_MAX_LOG)
        """Every POST in order of arrival. ``outcome`` is ``open``, ``delayed``, ``held``, ``stalled``, ``broken off``
        (by its sender before it was read, or by the server's end), or the status; ``answered`` is false while that was
        told to nobody."""

    def order(self, wanted: object) -> None:
        """Put other faults in force.

        Raises:
            ValueError: a key or its value is not known.
        """
        release = False
        if isinstance(wanted, dict) and "release" in wanted:
            release = wanted["release"]
            if not isinstance(release, bool):
                raise ValueError(f"release must be true or false, not {release!r}")
            wanted = {key: value for key, value in wanted.items() if key != "release"}
        self._faults = Faults.read(wanted)
        if release:
            self._released.set()
            self._released = asyncio.Event()

    def in_force(self) -> dict[str, Any]:
        """What is in force, and how many requests are held."""
        defaults = Faults()
        shown = {field.name: getattr(self._faults, field.name) for field in fields(Faults)}
        return {"held": self._held, "faults": {k: v for k, v in shown.items() if v != getattr(defaults, k)}}

    def break_off(self) -> None:
        """Break the connections of all requests that wait for something; they are not applied. For the server's end."""
        for task in [*self._waiting, *self._echoes]:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._receiver(scope, receive, send)
            return
        token = _token(scope)
        faults, released = self._next_faults(token["resource"]), self._released
        entry = {"at_ms": round(time.time() * 1000), **token, "operations": None, "outcome": "open"}
        entry["answered"] = False
        self.log.append(entry)
        read = await _read(receive)
        if read[-1]["type"] == "http.disconnect":
            entry["outcome"] = "broken off"
            return
        body = b"".join(message.get("body", b"") for message in read)
        entry["operations"] = _operations(scope, body)
        if faults.containing is not None and faults.containing.encode() not in body:
            faults = Faults()
        try:
            with self._breakable():
                await self._wait(faults, released, receive, entry)
        except _BrokenOff:
            entry["outcome"] = "broken off"
            await _abort(scope, receive)
            return
        if faults.stall:
            return
        if (status := faults.answer()) is not None:
            entry["outcome"] = status
            await _answer(send, faults, status)
            entry["answered"] = True
            return
        if faults.twice:
            await self._apply(dict(scope), _replayed(read, receive), send, entry, silent=True)
        answer = _Half(send) if faults.cut_answers else send
        await self._apply(dict(scope), _replayed(read, receive), answer, entry, silent=faults.drop_answers)
        if faults.echo_ms is not None:
            self._echo_later(faults.echo_ms / 1000, dict(scope), read, entry)
        if faults.cut_answers:
            entry["answered"] = False
        if faults.drop_answers or faults.cut_answers:
            await _abort(scope, receive)

    async def _wait(self, faults: Faults, released: asyncio.Event, receive: Receive, entry: dict[str, Any]) -> None:
        if faults.delay_ms:
            entry["outcome"] = "delayed"
            await asyncio.sleep(faults.delay_ms / 1000)
        if faults.hold:
            entry["outcome"] = "held"
            self._held += 1
            try:
                await released.wait()
            finally:
                self._held -= 1
        if faults.stall:
            entry["outcome"] = "stalled"
            await _gone(receive)

    @contextlib.contextmanager
    def _breakable(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            yield
        except asyncio.CancelledError:
            task.uncancel()
            raise _BrokenOff from None
        finally:
            self._waiting.discard(task)

    def _echo_later(self, delay: float, scope: Scope, read: list[Message], entry: Mapping[str, Any]) -> None:
        async def echo() -> None:
            await asyncio.sleep(delay)
            again = {**entry, "at_ms": round(time.time() * 1000), "outcome": "open", "answered": False, "echo": True}
            self.log.append(again)
            await self._apply(scope, _replayed(read, _left), _nobody, again, silent=True)

        task = asyncio.ensure_future(echo())
        self._echoes.add(task)
        task.add_done_callback(self._echoes.discard)

    async def _apply(self, scope: Scope, receive: Receive, send: Send, entry: dict[str, Any], *, silent: bool) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry["outcome"] = message["status"]
            if not silent:
                await send(message)
                entry["answered"] = True

        await self._receiver(scope, receive, noting)

    def _next_faults(self, resource: str | None) -> Faults:
        faults = self._faults
        if faults.resource not in (None, resource):
            return Faults()
        if faults.count is not None:
            self._faults = replace(faults, count=faults.count - 1) if faults.count > 1 else Faults()
        return faults


class _BrokenOff(Exception):
    pass


class _Half:
    """Sends an answer's head, and half of its body."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            message = {**message, "body": body[: len(body) // 2], "more_body": True}
        await self._send(message)


async def _abort(scope: Scope, receive: Receive) -> None:
    """Break the connection, and wait until the web server knows: it complains about a missing answer otherwise."""
    scope["extensions"][ABORT]()
    await _gone(receive)


async def _left() -> Message:
    return {"type": "http.disconnect"}


async def _nobody(message: Message) -> None:
    pass


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(receive: Receive) -> list[Message]:
    """The messages of the whole request; of one that is far too long, the first of them."""
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if not message.get("more_body", False) or size > _MAX_READ:
            return messages


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    left = deque(messages)

    async def replay() -> Message:
        return left.popleft() if left else await receive()

    return replay


async def _answer(send: Send, faults: Faults, status: int) -> None:
    is_text = isinstance(faults.body, str)
    body = faults.body if is_text else "" if faults.body is None else json.dumps(faults.body)
    headers = {"content-type": "text/html; charset=utf-8" if is_text else "application/json"}
    if faults.retry_after_s is not None:
        headers["retry-after"] = f"{faults.retry_after_s:g}"
    if faults.location is not None:
        headers["location"] = faults.location
    content = body.encode() if status not in (204, 304) else b""
    if content or status not in (204, 304):
        headers["content-length"] = str(len(content))
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": content})


def _token(scope: Scope) -> Mapping[str, Any]:
    names = ("domain", "resource", "epoch", "stream", "seq", "owner")
    values = [value for name, value in scope["headers"] if name == b"fencing-token"]
    try:
        token = parse_token_header(b", ".join(values).decode("latin-1"))
    except MalformedToken:
        return dict.fromkeys(names)
    seen = (token.domain, token.resource, token.epoch, token.stream, token.seq, token.owner_id)
    return dict(zip(names, seen, strict=True))


def _operations(scope: Scope, body: bytes) -> int | None:
    """How many operations the request holds; ``None`` if it cannot be read."""
    if any(name == b"idempotency-key" for name, _ in scope["headers"]):
        return 1
    try:
        return len(json.loads(body)["operations"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
