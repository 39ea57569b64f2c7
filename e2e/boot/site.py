"""Serves a bundle under the demo's policy: whole at ``/tabhelm/``, with one broken file at ``/broken/<how>/<file>/``.

``how`` is what ``e2e.answers`` knows, and ``once`` (changed the first time, and kept by the browser's cache; whole from
then on) and ``packed`` (with ``Content-Encoding: gzip``).
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from e2e.answers import LOGIN, answer, kind_of, spoilt, with_headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tabhelm_build.demo_app import POLICY
from tabhelm_build.serving import in_thread

WORKER = b"""
import { boot } from "/tabhelm/boot.mjs";
const booted = boot({});
self.onconnect = ({ ports: [port] }) => {
  port.onmessage = async ({ data }) => {
    const { pyodide, from } = await booted;
    port.postMessage({ from, answer: pyodide.runPython(data) });
  };
};
"""
_HEADERS = {"content-security-policy": POLICY, "cache-control": "max-age=600"}


@dataclass
class Site:
    """A running site. ``extra``: path → content, served before anything else. ``asked``: paths asked for, in order."""

    bundle: Path
    url: str = ""
    extra: dict[str, bytes] = field(default_factory=lambda: {"/worker.mjs": WORKER})
    asked: list[str] = field(default_factory=list)
    broken_once: set[str] = field(default_factory=set)


@contextmanager
def serve(bundle: Path) -> Iterator[Site]:
    """Serve ``bundle`` on a free port of this machine."""
    site = Site(bundle)

    async def app(closing: asyncio.Event) -> ASGIApp:
        return partial(_app, site, closing)

    with in_thread(app, lifespan="off") as site.url:
        yield site


async def _app(site: Site, closing: asyncio.Event, scope: Scope, receive: Receive, send: Send) -> None:
    path: str = scope["path"]
    site.asked.append(path)
    top, _, rest = path.removeprefix("/").partition("/")
    how = broken = ""
    if top == "broken":
        how, broken, rest = rest.split("/", 2)
        broken = broken.replace("~", "/")
    send = with_headers(send, _HEADERS)
    file = site.bundle / rest
    if path == "/blank":
        await answer(send, 200, LOGIN, "text/html")
    elif path in site.extra:
        await answer(send, 200, site.extra[path], kind_of(path))
    elif top not in ("tabhelm", "broken") or not file.is_file():
        await answer(send, 404, b"not found", "text/plain")
    elif rest != broken:
        await answer(send, 200, file.read_bytes(), kind_of(rest))
    elif how == "packed":
        body = file.read_bytes()
        packed = body if rest.endswith(".gz") else gzip.compress(body, compresslevel=1)
        await answer(send, 200, packed, kind_of(rest), {"content-encoding": "gzip"})
    elif how == "once" and path in site.broken_once:
        await answer(send, 200, file.read_bytes(), kind_of(rest))
    else:
        site.broken_once.add(path)
        await spoilt(send, "changed" if how == "once" else how, file.read_bytes(), kind_of(rest), closing)
