"""Serves the client as it is, with the fake engine in the place of the engine, under the demo server's policy."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Playwright

from tabhelm.testing import ChaosBrowser, ChaosTab

WEB = Path(__file__).resolve().parents[2] / "web"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'; "
    "style-src 'self'; img-src 'self'"
)
JOIN = """async (options) => {
  window.m = await import("/tabhelm/tabhelm.mjs");
  window.uncaught = [];
  for (const type of ["error", "unhandledrejection"]) {
    addEventListener(type, (event) => uncaught.push(String(event.reason ?? event.message)));
  }
  window.tab = await m.join({ app: "t", testHooks: true, enginePatienceMs: 6_000, ...options });
  window.command = (to, what, message) => new BroadcastChannel("fake-engine").postMessage({ to, do: what, message });
}"""
BUILD_INFO = b'export const buildId = "test"; export const version = "0.0.0";'


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/tabhelm/")
        if name in ("/blank", "/other"):
            self.answer(200, b"<!doctype html><title>blank</title>", "text/html")
        elif name == "build-info.mjs":
            self.answer(200, BUILD_INFO, "text/javascript")
        elif name == "engine.mjs":
            self.answer(200, Path(__file__).with_name("fake_engine.mjs").read_bytes(), "text/javascript")
        elif "/" not in name and (WEB / name).is_file():
            self.answer(200, (WEB / name).read_bytes(), "text/javascript")
        else:
            self.answer(404, b"not found", "text/plain")

    def answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def one_tab(chromium_path: str, playwright_driver: Playwright, origin: str) -> AsyncIterator[ChaosTab]:
    """A joined tab for tests that change nothing."""
    async with ChaosBrowser.launch(chromium_path, playwright=playwright_driver) as browser:
        tab = await browser.new_tab(f"{origin}/blank")
        await tab.evaluate(JOIN, {})
        yield tab
