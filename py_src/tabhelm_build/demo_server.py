"""The demo server: ``python build.py demo``, and as a subprocess for tests.

Serves ``/`` the demo, ``/blank`` and ``/blank2`` empty pages under the same policy, ``/tabhelm/…`` the bundle,
``/tabhelm2/…`` a second one, ``POST /api/operations`` the receiver, ``GET /api/overview`` what the demo shows of it;
for tests and curiosity ``GET /api/effects``, ``/api/cases``, ``/api/metrics``, ``/api/requests``, and ``/api/faults``
(see ``demo_faults``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import sqlite3
import sys
import tempfile
import webbrowser
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tabhelm.errors import TabhelmError
from tabhelm_build.demo_app import ROOT, demo_app
from tabhelm_build.demo_faults import ABORT
from tabhelm_build.serving import HOST, ServerProcess, end_with_stdin, listener, reserved

PORT = 8765
DIST = ROOT / "dist"


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; returns the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description="Serve the tabhelm demo on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=PORT, help=f"default {PORT}; 0 takes a free one")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    parser.add_argument("--database", type=Path, help="a SQLite file to keep; default: a temporary one")
    parser.add_argument("--dist", type=Path, default=DIST, help="the bundle's folder")
    parser.add_argument("--no-bundle", action="store_true", help="serve no bundle")
    parser.add_argument("--second-bundle", type=Path, help="another bundle's folder, served as /tabhelm2/")
    parser.add_argument("--until-stdin-ends", action="store_true", help="end when standard input does")
    options = parser.parse_args(arguments)
    if options.no_bundle:
        options.dist = None
    for folder in (options.dist, options.second_bundle):
        if folder is not None and not (folder / "tabhelm.mjs").is_file():
            _fail(f"{folder} holds no bundle: run python build.py bundle")
    # The web server ends well on SIGTERM, then raises it again; without this the temporary database would stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    at = _listen(options.port)
    with contextlib.ExitStack() as stack:
        stack.enter_context(at)
        database = options.database
        if database is None:
            database = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tabhelm-demo-"))) / "demo.db"
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        asyncio.run(_serve(at, options, database))
    return 0


async def _serve(at: socket.socket, options: argparse.Namespace, database: Path) -> None:
    try:
        app = await demo_app(database, options.dist, options.second_bundle)
    except (sqlite3.Error, TabhelmError) as error:
        _fail(f"the database {database} cannot be used: {error}")
    config = uvicorn.Config(
        app,
        http=_Protocol,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
    )
    url = f"http://{HOST}:{at.getsockname()[1]}"
    server = _Server(config, url, opens=not options.no_open, break_off=app.state.break_off)
    if options.until_stdin_ends:
        end_with_stdin(server)
    await server.serve(sockets=[at])


class _Server(uvicorn.Server):
    """Says where it is once it answers, and does not wait for requests that wait because of a fault."""

    def __init__(self, config: uvicorn.Config, url: str, *, opens: bool, break_off: Callable[[], None]) -> None:
        super().__init__(config)
        self._url = url
        self._opens = opens
        self._break_off = break_off

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"The demo runs at {self._url}/ (Ctrl+C ends it)", flush=True)
        if self._opens and _has_screen():
            await asyncio.to_thread(webbrowser.open, f"{self._url}/")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._break_off()
        await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """Gives the application a way to break its connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        app = self.app

        async def app_with_abort(scope: Scope, receive: Receive, send: Send) -> None:
            extensions: MutableMapping[str, Any] = scope.setdefault("extensions", {})
            extensions[ABORT] = self.transport.abort
            await app(scope, receive, send)

        self.app = app_with_abort


def _listen(port: int) -> socket.socket:
    try:
        return listener(port)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            _fail(f"port {port} is in use: choose another with --port N, or a free one with --port 0")
        _fail(f"port {port} cannot be used: {error}")


def _has_screen() -> bool:
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _fail(text: str) -> NoReturn:
    raise SystemExit(f"demo: {text}")


class DemoServer:
    """The demo server in a process of its own, for tests. It ends with the block, and no later than our process.

    ``with DemoServer(dist=…) as server: server.url`` (like ``http://127.0.0.1:40123``). ``dist=None`` serves no bundle.
    ``kill()`` or ``stop()``, then ``start()``: the receiver dies and comes back, with the same port and database. The
    helpers are plain blocking calls of a few milliseconds.
    """

    def __init__(
        self,
        dist: Path | None = DIST,
        *,
        second_bundle: Path | None = None,
        port: int = 0,
        database: Path | None = None,
    ) -> None:
        self.url = ""
        self._port = port
        self._bundles = ["--no-bundle"] if dist is None else ["--dist", str(dist)]
        if second_bundle is not None:
            self._bundles += ["--second-bundle", str(second_bundle)]
        self._database = database
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: ServerProcess | None = None
        self._place: socket.socket | None = None
        """Keeps the port ours while no server runs."""

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def database(self) -> Path:
        """The SQLite file."""
        assert self._database is not None, "the server was never started"
        return self._database

    def __enter__(self) -> DemoServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._place is not None:
            self._place.close()
            self._place = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder, self._database = None, None

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            RuntimeError: it did not start; its own words went to standard error.
        """
        if self._database is None:
            self._folder = tempfile.TemporaryDirectory(prefix="tabhelm-demo-")
            self._database = Path(self._folder.name) / "demo.db"
        if self._port == 0 and sys.platform == "linux":
            self._place = reserved()
            self._port = self._place.getsockname()[1]
        command = ["-m", "tabhelm_build.demo_server", "--no-open", "--until-stdin-ends"]
        command += ["--port", str(self._port), "--database", str(self._database), *self._bundles]
        try:
            self._process = ServerProcess(command)
        except RuntimeError:
            self.__exit__(None, None, None)
            raise
        self.url = self._process.url
        self._port = int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        """End it; requests that it holds are broken off and not applied."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def kill(self) -> None:
        """End it at once, wherever it is (SIGKILL)."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def effects(self) -> list[dict[str, Any]]:
        """The accepted effects in order."""
        found: list[dict[str, Any]] = self._ask("GET", "/api/effects")
        return found

    def requests(self) -> list[dict[str, Any]]:
        """Every POST to the receiver in order of arrival."""
        found: list[dict[str, Any]] = self._ask("GET", "/api/requests")
        return found

    def cases(self) -> list[dict[str, Any]]:
        """The demo's cases: ``{id, title, completed}``."""
        found: list[dict[str, Any]] = self._ask("GET", "/api/cases")["cases"]
        return found

    def metrics(self) -> dict[str, Any]:
        """The receiver's counters: ``{"totals": {…}, "resources": {name: {…}}}``."""
        found: dict[str, Any] = self._ask("GET", "/api/metrics")
        return found

    def faults(self, **wanted: Any) -> dict[str, Any]:
        """Replace the faults in force (none: end them); returns ``{"held": n, "faults": {…}}``.

        Raises:
            ValueError: a fault is not known.
        """
        found: dict[str, Any] = self._ask("POST", "/api/faults", wanted)
        return found

    def held(self) -> int:
        """How many requests are held now."""
        return int(self._ask("GET", "/api/faults")["held"])

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), {"content-type": "application/json"}
            )
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status == 400:
            raise ValueError(answer["detail"])
        if response.status != 200:
            raise RuntimeError(f"{method} {path} was answered with {response.status}: {answer}")
        return answer


if __name__ == "__main__":
    raise SystemExit(main())
