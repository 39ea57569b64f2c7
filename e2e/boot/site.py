"""Serves a bundle under the demo's policy: whole at ``/tabhelm/``, with one broken file at ``/broken/<how>/<file>/``.

``how``: ``missing`` (404), ``page`` (a login page with status 200), ``short`` (the second half cut off), ``changed``
(one byte is another), ``untyped`` (served as application/octet-stream), ``silent`` (no answer until the site closes),
``stuck`` (half of it, then nothing), ``slow`` (in pieces, half a second apart), ``once`` (changed the first time, and
kept by the browser's cache; whole from then on), ``packed`` (with ``Content-Encoding: gzip``).
"""

from __future__ import annotations

import gzip
import mimetypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'; "
    "style-src 'self'; img-src 'self'"
)
PAGE = b"<!doctype html><title>Please log in</title>"
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
_TYPES = {".mjs": "text/javascript", ".wasm": "application/wasm"}


@dataclass(frozen=True, slots=True)
class Site:
    """A running site. ``extra``: path → content, served before anything else. ``asked``: paths asked for, in order."""

    url: str
    extra: dict[str, bytes]
    asked: list[str]


@contextmanager
def serve(bundle: Path) -> Iterator[Site]:
    """Serve ``bundle`` on a free port of this machine."""
    extra: dict[str, bytes] = {"/worker.mjs": WORKER}
    closing = threading.Event()
    seen: set[str] = set()
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            top, _, rest = path.removeprefix("/").partition("/")
            how = broken = ""
            if top == "broken":
                how, broken, rest = rest.split("/", 2)
                broken = broken.replace("~", "/")
            if path == "/blank":
                self.answer(200, PAGE, "text/html")
            elif path in extra:
                self.answer(200, extra[path], _kind(path))
            elif top not in ("tabhelm", "broken") or not (bundle / rest).is_file():
                self.answer(404, b"not found", "text/plain")
            elif rest == broken:
                self.spoilt(how, (bundle / rest).read_bytes(), _kind(rest))
            else:
                self.answer(200, (bundle / rest).read_bytes(), _kind(rest))

        def spoilt(self, how: str, body: bytes, kind: str) -> None:
            match how:
                case "missing":
                    self.answer(404, b"not found", "text/plain")
                case "page":
                    self.answer(200, PAGE, "text/html")
                case "short":
                    self.answer(200, body[: len(body) // 2], kind)
                case "changed":
                    self.answer(200, body[:-9] + bytes([body[-9] ^ 1]) + body[-8:], kind)
                case "untyped":
                    self.answer(200, body, "application/octet-stream")
                case "stuck":
                    self.begin(200, len(body), kind)
                    self.wfile.write(body[: len(body) // 2])
                    closing.wait()
                    self.close_connection = True
                case "slow":
                    self.begin(200, len(body), kind)
                    step = len(body) // 5 + 1
                    for start in range(0, len(body), step):
                        self.wfile.write(body[start : start + step])
                        closing.wait(0.5)
                case "packed":
                    packed = body if self.path.endswith(".gz") else gzip.compress(body, compresslevel=1)
                    self.begin(200, len(packed), kind, encoding="gzip")
                    self.wfile.write(packed)
                case "once":
                    first = self.path not in seen
                    seen.add(self.path)
                    self.spoilt("changed", body, kind) if first else self.answer(200, body, kind)
                case _:
                    closing.wait()
                    self.close_connection = True

        def answer(self, status: int, body: bytes, kind: str) -> None:
            self.begin(status, len(body), kind)
            self.wfile.write(body)

        def begin(self, status: int, length: int, kind: str, *, encoding: str = "") -> None:
            self.send_response(status)
            if encoding:
                self.send_header("Content-Encoding", encoding)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(length))
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("Cache-Control", "max-age=600")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # pages that give up close their connections

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Site(f"http://127.0.0.1:{server.server_port}", extra, asked)
        finally:
            closing.set()
            server.shutdown()
            thread.join()


def _kind(path: str) -> str:
    suffix = Path(path).suffix
    return _TYPES.get(suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"
