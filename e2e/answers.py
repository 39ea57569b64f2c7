"""What the tests' own sites answer: files as they are, and files spoilt on purpose."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Mapping
from pathlib import Path

from starlette.types import Message, Send

LOGIN = b"<!doctype html><title>Please log in</title>"
MODULE = "text/javascript; charset=utf-8"
_TYPES = {".mjs": MODULE, ".js": MODULE, ".wasm": "application/wasm"}
WITHOUT_IT = ("missing", "page", "redirect", "silent")
"""The ways to spoil a file without looking at it."""


def kind_of(path: str) -> str:
    """The media type of a file, by its name."""
    return _TYPES.get(Path(path).suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"


async def begin(send: Send, status: int, length: int, kind: str, headers: Mapping[str, str] = {}) -> None:
    """The head of an answer whose body comes by ``http.response.body``."""
    given = {"content-type": kind, "content-length": str(length), "cache-control": "no-cache", **headers}
    head = [(name.encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": head})


async def answer(send: Send, status: int, body: bytes, kind: str, headers: Mapping[str, str] = {}) -> None:
    """A whole answer."""
    await begin(send, status, len(body), kind, headers)
    await send({"type": "http.response.body", "body": body})


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Answers have these headers too, whatever they say of them; an empty value takes one away."""

    async def described(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message["headers"] if name.decode() not in headers]
            added = [(name.encode(), value.encode()) for name, value in headers.items() if value]
            message = {**message, "headers": kept + added}
        await send(message)

    return described


async def spoilt(send: Send, how: str, body: bytes, kind: str, closing: asyncio.Event) -> None:
    """Answer badly instead of with ``body``.

    ``how``: ``missing`` (404), ``page`` (a login page, status 200), ``redirect`` (to that page), ``short`` (half),
    ``changed`` (one byte is another), ``untyped`` (application/octet-stream), ``silent`` (never), ``stuck`` (half, then
    nothing), ``slow`` (in pieces, half a second apart). What never ends, ends with ``closing``.
    """
    half = body[: len(body) // 2]
    match how:
        case "missing":
            await answer(send, 404, b"not found", "text/plain")
        case "page":
            await answer(send, 200, LOGIN, "text/html")
        case "redirect":
            await answer(send, 302, b"", "text/plain", {"location": "/login"})
        case "short":
            await answer(send, 200, half, kind)
        case "changed":
            await answer(send, 200, body[:-9] + bytes([body[-9] ^ 1]) + body[-8:], kind)
        case "untyped":
            await answer(send, 200, body, "application/octet-stream")
        case "silent":
            await closing.wait()
        case "stuck":
            await begin(send, 200, len(body), kind)
            await send({"type": "http.response.body", "body": half, "more_body": True})
            await closing.wait()
        case "slow":
            await begin(send, 200, len(body), kind)
            step = len(body) // 14 + 1
            for start in range(0, len(body), step):
                await asyncio.sleep(0.5 if start else 0)
                await send({"type": "http.response.body", "body": body[start : start + step], "more_body": True})
            await send({"type": "http.response.body"})
        case _:
            raise ValueError(f"no way to spoil a file is called {how!r}")
