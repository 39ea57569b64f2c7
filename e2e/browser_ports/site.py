"""A small web server for these tests alone: the sources as they are, a runtime, an empty page, a few odd endpoints.

The sources are served unbundled, so that the tests see an edit at once and need no bundle. Every answer carries the
strict policy that the demo server sends.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tabhelm.server import LeaseService, MemoryLeaseStore
from tabhelm.simulated import HttpRequest, asgi_handler

ROOT = Path(__file__).resolve().parents[2]
PARTS = Path(__file__).resolve().parent
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'; "
    "style-src 'self'; img-src 'self'"
)
_TYPES = {".mjs": "text/javascript", ".wasm": "application/wasm", ".py": "text/plain"}
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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        parts = path.strip("/").split("/")
        if path == "/blank":
            self.answer(200, b"<!doctype html><title>blank</title>", "text/html")
        elif path == "/sources.json":
            self.answer(200, json.dumps(sources()).encode(), "application/json")
        elif parts[0] == "leases":
            self.lease()
        elif parts[0] == "odd":
            self.odd(parts[1])
        elif len(parts) >= 2:
            self.file(parts)

    do_POST = do_GET
    do_DELETE = do_GET

    def lease(self) -> None:
        """What the lease service says. That a client has gone is not noticed."""
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = HttpRequest(self.command, f"{path}?{query}", headers, body.decode(), "")
        answering = asyncio.run_coroutine_threadsafe(self.server.leases(request), self.server.loop)  # type: ignore[attr-defined]
        answer = answering.result(30)
        self.answer(answer.status, answer.body.encode(), answer.headers["content-type"])

    def file(self, parts: list[str]) -> None:
        match parts:
            case ["runtime", name]:
                file = runtime_folder() / name
            case ["engine", variant, "boot.mjs"]:
                file = PARTS / "boots" / f"{variant}.mjs"
            case ["engine", _, name] | ["web", name]:
                file = ROOT / "web" / name
            case ["parts", name]:
                file = PARTS / name
            case _:
                file = ROOT / "missing"
        if not file.is_file():
            self.answer(404, b"not found", "text/plain")
            return
        kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        self.answer(200, file.read_bytes(), kind)

    def odd(self, what: str) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        match what:
            case "echo":
                seen = {"method": self.command, "body": body.decode(), "headers": dict(self.headers.items())}
                self.answer(201, json.dumps(seen).encode(), "application/json")
            case "redirect":
                self.answer(302, b"", "text/plain", location="/odd/echo")
            case "big":
                self.answer(200, b"x" * (3 << 20), "text/plain")
            case "empty":
                self.answer(204, b"", None)
            case "silent":
                self.server.until_released.wait(30)  # type: ignore[attr-defined]
            case "half":
                self.send_response(200)
                self.send_header("content-length", "100")
                self.end_headers()
                self.wfile.write(b"half")
                self.wfile.flush()
                self.server.until_released.wait(30)  # type: ignore[attr-defined]
            case "cut":
                self.send_response(200)
                self.send_header("content-length", "100")
                self.end_headers()
                self.wfile.write(b"half")
                self.close_connection = True

    def answer(self, status: int, body: bytes, kind: str | None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-security-policy", POLICY)
        if kind is not None:
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.until_released = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.leases = asgi_handler(LeaseService(MemoryLeaseStore()))

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away in mid-answer is no news."""


@contextmanager
def serve() -> Iterator[str]:
    """Serve until the block ends; gives the origin."""
    server = _Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    looping = threading.Thread(target=server.loop.run_forever, daemon=True)
    looping.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.until_released.set()
        server.shutdown()
        server.server_close()
        server.loop.call_soon_threadsafe(server.loop.stop)
        looping.join()
        server.loop.close()


if __name__ == "__main__":
    with serve() as origin:
        print(f"{origin}/blank", flush=True)
        while True:
            time.sleep(60)
