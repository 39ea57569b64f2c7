"""The demo's application behind a server that serves badly on purpose: other policies, wrong files, silence."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import socket
import tempfile
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tabhelm_build.demo_app import POLICY, demo_app

TYPES = {".mjs": "text/javascript; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".wasm": "application/wasm"}
LOGIN = b"<!doctype html><title>Please log in</title>"


@dataclass
class Behaviour:
    """What a running site does; tests change it while it runs.

    ``spoilt``: end of a path → how it is answered: ``missing`` (404), ``page`` (a login page, status 200), ``redirect``
    (to that page), ``short`` (half), ``changed`` (one byte is another), ``silent`` (never), ``stuck`` (half, then
    nothing). ``folders``: first part of the path → folder, before anything of the demo. ``extra``: path → (body, type).
    ``policies``: first part of the path → its Content-Security-Policy. ``headers``: of every answer. ``asked``: the
    paths, in order.
    """

    spoilt: dict[str, str] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    extra: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def page(self, path: str, body: str = "") -> None:
        """Serve a page at ``path``."""
        text = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{path}</title>{body}</html>'
        self.extra[path] = (text.encode(), "text/html; charset=utf-8")

    def script(self, path: str, text: str) -> None:
        """Serve a module at ``path``."""
        self.extra[path] = (text.encode(), TYPES[".mjs"])


@dataclass(frozen=True)
class OddSite:
    """A running site. ``port`` answers on every address of this machine."""

    port: int
    does: Behaviour

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _Odd:
    def __init__(self, app: ASGIApp, does: Behaviour, closing: threading.Event) -> None:
        self._app = app
        self._does = does
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        does, path = self._does, scope["path"]
        does.asked.append(path)
        top = path.split("/")[1]
        policy = does.policies.get(top, POLICY)

        async def described(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = {"content-security-policy": policy, **does.headers}
                kept = [(name, value) for name, value in message["headers"] if name.decode() not in added]
                kept += [(name.encode(), value.encode()) for name, value in added.items() if value]
                message = {**message, "headers": kept}
            await send(message)

        how = next((how for end, how in does.spoilt.items() if path.endswith(end)), None)
        found = self._found(path, top)
        if how is not None:
            await self._spoilt(how, scope, found, receive, described)
        elif found is not None:
            await _answer(described, 200, *found)
        else:
            await self._app(_as_loopback(scope), receive, described)

    def _found(self, path: str, top: str) -> tuple[bytes, str] | None:
        if path in self._does.extra:
            return self._does.extra[path]
        folder = self._does.folders.get(top)
        if folder is None:
            return None
        file = folder / path.removeprefix(f"/{top}/")
        if not file.is_file():
            return None
        return file.read_bytes(), TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[
            0
        ] or "application/octet-stream"

    async def _spoilt(
        self, how: str, scope: Scope, found: tuple[bytes, str] | None, receive: Receive, send: Send
    ) -> None:
        if how == "missing":
            await _answer(send, 404, b"not found", "text/plain")
        elif how == "page":
            await _answer(send, 200, LOGIN, "text/html")
        elif how == "redirect":
            await _answer(send, 302, b"", "text/plain", location="/login")
        elif how == "silent":
            await self._until_closed()
        else:
            body, kind = found or await self._whole(scope, receive)
            if how == "short":
                await _answer(send, 200, body[: len(body) // 2], kind)
            elif how == "changed":
                await _answer(send, 200, body[:-9] + bytes([body[-9] ^ 1]) + body[-8:], kind)
            else:
                assert how == "stuck", how
                await _begin(send, 200, len(body), kind)
                await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
                await self._until_closed()

    async def _whole(self, scope: Scope, receive: Receive) -> tuple[bytes, str]:
        """What the demo would answer."""
        parts: list[bytes] = []
        kind = ""

        async def keep(message: Message) -> None:
            nonlocal kind
            if message["type"] == "http.response.start":
                kind = dict(message["headers"])[b"content-type"].decode()
            else:
                parts.append(message.get("body", b""))

        await self._app(_as_loopback(scope), receive, keep)
        return b"".join(parts), kind

    async def _until_closed(self) -> None:
        while not self._closing.is_set():
            await asyncio.sleep(0.05)


def _as_loopback(scope: Scope) -> MutableMapping[str, Any]:
    """The demo answers to its own names only; here it is asked by others."""
    headers = [(name, b"localhost" if name == b"host" else value) for name, value in scope["headers"]]
    return {**scope, "headers": headers}


async def _begin(send: Send, status: int, length: int, kind: str, **more: str) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(length).encode()),
        (b"cache-control", b"no-cache"),
        *((name.encode(), value.encode()) for name, value in more.items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _answer(send: Send, status: int, body: bytes, kind: str, **more: str) -> None:
    await _begin(send, status, len(body), kind, **more)
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serve(bundle: Path | None, *, address: str = "127.0.0.1", **paths: Path) -> Iterator[OddSite]:
    """Serve the demo with ``bundle`` at ``/tabhelm``, and more folders by name, on a free port of ``address``."""
    does = Behaviour(folders=dict(paths))
    closing = threading.Event()
    started: threading.Event = threading.Event()
    listener = socket.create_server((address, 0), backlog=256)
    server: uvicorn.Server | None = None

    async def run(database: Path) -> None:
        nonlocal server
        app = await demo_app(database, bundle)
        config = uvicorn.Config(
            _Odd(app, does, closing), log_level="critical", access_log=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        started.set()
        await server.serve(sockets=[listener])

    with contextlib.ExitStack() as stack:
        stack.enter_context(listener)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tabhelm-odd-"))
        thread = threading.Thread(target=lambda: asyncio.run(run(Path(folder) / "demo.db")), daemon=True)
        thread.start()
        assert started.wait(10), "the server did not start"
        try:
            yield OddSite(listener.getsockname()[1], does)
        finally:
            closing.set()
            assert server is not None
            server.should_exit = True
            thread.join(10)
