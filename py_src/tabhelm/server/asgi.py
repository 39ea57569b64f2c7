"""The little of ASGI that receiver and lease service need."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Disconnected(Exception):
    """The client went away before its request was complete."""


class TooLarge(Exception):
    """The body is longer than allowed."""


class Repeated(Exception):
    """A header that must come once came more often."""

    def __init__(self, name: str, times: int) -> None:
        super().__init__(f"the header {name} came {times} times")


def header(scope: Scope, name: bytes) -> str | None:
    """A header's value; several lines are one value, joined as HTTP says."""
    values = _lines(scope, name)
    return ", ".join(values) if values else None


def only_header(scope: Scope, name: str) -> str | None:
    """The value of a header that is one item. Two lines of it, joined, might read as one that nobody sent.

    Raises:
        Repeated: there are several.
    """
    values = _lines(scope, name.lower().encode())
    if len(values) > 1:
        raise Repeated(name, len(values))
    return values[0] if values else None


def _lines(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, of at most ``limit`` bytes.

    Raises:
        TooLarge: it is longer, or says that it will be.
        Disconnected: it ended early.
    """
    length = header(scope, b"content-length")
    if length is not None and length.isdecimal() and int(length[:20]) > limit:
        raise TooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLarge
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def respond(send: Send, status: int, body: object, media_type: str, headers: Mapping[str, str]) -> None:
    """Answer with JSON, which no browser may take for anything else."""
    content = json.dumps(body, separators=(",", ":")).encode()
    more = {"content-type": media_type, "x-content-type-options": "nosniff", **headers}
    await reply(send, status, content, more)


async def respond_to_nobody(send: Send) -> None:
    """The client has gone. Middleware around us takes an application that says nothing for one that has failed."""
    await reply(send, 400, b"", {"content-type": "text/plain"})


async def reply(send: Send, status: int, content: bytes, headers: Mapping[str, str]) -> None:
    """Answer. That the client has gone is no failure: what was decided stands, and it will ask again."""
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    raw.append((b"content-length", str(len(content)).encode()))
    try:
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": content})
    except OSError:
        pass  # as ASGI has it for those who have gone


async def dispatch(
    scope: Scope,
    receive: Receive,
    send: Send,
    request: Callable[[Scope, Receive, Send], Awaitable[None]],
    close: Callable[[], Awaitable[None]],
) -> None:
    """What an application does with each kind of scope: ``request`` answers HTTP, ``close`` ends its lifespan, and
    WebSockets are not wanted."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send, close)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        await request(scope, receive, send)


async def _lifespan(receive: Receive, send: Send, close: Callable[[], Awaitable[None]]) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await close()
            await send({"type": "lifespan.shutdown.complete"})
            return
