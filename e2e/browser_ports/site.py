"""A small web server for these tests alone: the sources as they are, a runtime, an empty page, a few odd endpoints.

The sources are served unbundled, so that the tests see an edit at once and need no bundle. Every answer carries the
strict policy that the demo server sends.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from e2e.answers import answer, begin, kind_of, with_headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tabhelm.server import LeaseService, MemoryLeaseStore
from tabhelm_build.demo_app import POLICY
from tabhelm_build.serving import in_thread

ROOT = Path(__file__).resolve().parents[2]
PARTS = Path(__file__).resolve().parent
_NOT_IN_PAGES = ("server", "testing")


def runtime_folder() -> Path:
    """The folder of the Pyodide runtime: ``TABHELM_PYODIDE``, else what the bundle or npm has put there."""
    given = os.environ.get("TABHELM_PYODIDE")
    if given:
        return Path(given)
    for place in (ROOT / "dist", ROOT / "web" / "node_modules" / "pyodide", ROOT / "build"):
        for found in sorted(place.rglob("pyodide.asm.wasm")) if place.is_dir() else ():
            if (found.parent / "pyodide.mjs").is_file():
                return found.parent
    raise FileNotFoundError("no Pyodide runtime found: run `python build.py bundle`, or set TABHELM_PYODIDE")


def sources() -> dict[str, str]:
    """The package as pages see it: path → text."""
    package = ROOT / "py_src"
    files = {file.relative_to(package).as_posix(): file for file in sorted(package.glob("tabhelm/**/*.py"))}
    return {path: file.read_text() for path, file in files.items() if path.split("/")[1] not in _NOT_IN_PAGES}


def serve() -> AbstractContextManager[str]:
    """Serve until the block ends; gives the origin."""

    async def app(closing: asyncio.Event) -> ASGIApp:
        return partial(_app, LeaseService(MemoryLeaseStore()), closing)

    return in_thread(app)


async def _app(leases: ASGIApp, closing: asyncio.Event, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await leases(scope, receive, send)
        return
    send = with_headers(send, {"content-security-policy": POLICY})
    match scope["path"].strip("/").split("/"):
        case ["blank"]:
            await answer(send, 200, b"<!doctype html><title>blank</title>", "text/html")
        case ["sources.json"]:
            await answer(send, 200, json.dumps(sources()).encode(), "application/json")
        case ["leases", *_]:
            await leases(scope, receive, send)
        case ["odd", what]:
            await _odd(what, Request(scope, receive), send, closing)
        case parts:
            file = _file(parts)
            if file is None or not file.is_file():
                await answer(send, 404, b"not found", "text/plain")
            else:
                kind = "text/plain" if file.suffix == ".py" else kind_of(file.name)
                await answer(send, 200, file.read_bytes(), kind)


def _file(parts: list[str]) -> Path | None:
    match parts:
        case ["runtime", name]:
            return runtime_folder() / name
        case ["engine", variant, "boot.mjs"]:
            return PARTS / "boots" / f"{variant}.mjs"
        case ["engine", _, name] | ["web", name]:
            return ROOT / "web" / name
        case ["parts", name]:
            return PARTS / name
        case _:
            return None


async def _odd(what: str, request: Request, send: Send, closing: asyncio.Event) -> None:
    body = await request.body()
    match what:
        case "echo":
            seen = {"method": request.method, "body": body.decode(), "headers": dict(request.headers)}
            await answer(send, 201, json.dumps(seen).encode(), "application/json")
        case "redirect":
            await answer(send, 302, b"", "text/plain", {"location": "/odd/echo"})
        case "big":
            await answer(send, 200, b"x" * (3 << 20), "text/plain")
        case "empty":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})
        case "silent":
            await closing.wait()
        case "half" | "cut":
            await begin(send, 200, 100, "text/plain")
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            if what == "half":
                await closing.wait()
            # Where an answer is not whole when the application returns, the server breaks the connection.


if __name__ == "__main__":
    with serve() as origin:
        print(f"{origin}/blank", flush=True)
        while True:
            time.sleep(60)
