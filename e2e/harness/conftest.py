"""A tiny site under the same strict content security policy as the demo: any path is an empty page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

CSP = "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'"
PAGE = b"<!doctype html><meta charset=utf-8><title>page</title><p>A page."
# Answers pings, and counts the tabs that ever connected.
WORKER = b"""
let tabs = 0;
onconnect = ({ ports: [port] }) => {
  tabs += 1;
  port.onmessage = ({ data }) => port.postMessage({ echo: data, tabs });
};
console.log("worker up");
"""
# For the test that a copied sessionStorage is there before the page's first script.
EARLY_PAGE = b"<!doctype html><script src=/early.js></script>"
EARLY = b"globalThis.early = sessionStorage.getItem('who');"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        scripts = {"/worker.js": WORKER, "/early.js": EARLY}
        script = scripts.get(self.path)
        body = script or (EARLY_PAGE if self.path == "/early" else PAGE)
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if script else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", CSP)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a killed tab drops its connection: nothing to report


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """Origin of the site, such as ``http://127.0.0.1:40123``."""
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()
