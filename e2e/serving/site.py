"""The demo's application behind a server that serves badly on purpose: other policies, wrong files, silence."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.answers import MODULE, WITHOUT_IT, answer, kind_of, spoilt, with_headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tabhelm_build.demo_app import POLICY, demo_app
from tabhelm_build.serving import in_thread


@dataclass
class Behaviour:
    """What a running site does; tests change it while it runs.

    ``spoilt``: end of a path → how it is answered, in a word of ``e2e.answers``. ``folders``: first part of the path →
    folder, before anything of the demo. ``extra``: path → (body, type). ``policies``: first part of the path → its
    Content-Security-Policy. ``headers``: of every answer. ``asked``: the paths, in order.
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
        self.extra[path] = (text.encode(), MODULE)


@dataclass(frozen=True)
class OddSite:
    """A running site."""

    url: str
    does: Behaviour

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


class _Odd:
    def __init__(self, app: ASGIApp, does: Behaviour, closing: asyncio.Event) -> None:
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
        send = with_headers(send, {"content-security-policy": does.policies.get(top, POLICY), **does.headers})
        how = next((how for end, how in does.spoilt.items() if path.endswith(end)), None)
        found = self._found(path, top)
        if how is not None:
            nothing = (b"", "") if how in WITHOUT_IT else None
            await spoilt(send, how, *(nothing or found or await self._whole(scope, receive)), self._closing)
        elif found is not None:
            await answer(send, 200, *found)
        else:
            await self._app(_as_loopback(scope), receive, send)

    def _found(self, path: str, top: str) -> tuple[bytes, str] | None:
        if path in self._does.extra:
            return self._does.extra[path]
        folder = self._does.folders.get(top)
        if folder is None:
            return None
        file = folder / path.removeprefix(f"/{top}/")
        if not file.is_file():
            return None
        return file.read_bytes(), kind_of(file.name)

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


def _as_loopback(scope: Scope) -> MutableMapping[str, Any]:
    """The demo answers to its own names only; here it is asked by others."""
    headers = [(name, b"localhost" if name == b"host" else value) for name, value in scope["headers"]]
    return {**scope, "headers": headers}


@contextmanager
def serve(bundle: Path | None, **paths: Path) -> Iterator[OddSite]:
    """Serve the demo with ``bundle`` at ``/tabhelm``, and more folders by name, on a free port."""
    does = Behaviour(folders=dict(paths))
    with tempfile.TemporaryDirectory(prefix="tabhelm-odd-") as folder:

        async def app(closing: asyncio.Event) -> ASGIApp:
            return _Odd(await demo_app(Path(folder) / "demo.db", bundle), does, closing)

        with in_thread(app) as url:
            yield OddSite(url, does)
