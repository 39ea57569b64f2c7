"""Web servers of the demo, the tests and the benchmarks: in a process that ends with its parent, or in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
PATIENCE = 20.0
"""Seconds that a server may take to start or to end."""
# uvicorn takes a partial for an application of ASGI 2, if it is not told.
_ALWAYS: dict[str, Any] = {"access_log": False, "interface": "asgi3"}


def listener(port: int = 0) -> socket.socket:
    """A socket that listens on ``port`` of this machine alone; 0 takes a free one.

    Raises:
        OSError: the port is in use, or not ours to take.
        OverflowError: it is no port.
    """
    # asyncio sets TCP_NODELAY only where the protocol is named; without it each answer to a POST waits 40 ms.
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if os.name == "posix":
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # elsewhere it would share a port in use
    try:
        made.bind((HOST, port))
        made.listen(512)
    except BaseException:
        made.close()
        raise
    return made


def reserved() -> socket.socket:
    """A free port that nobody else is given while this is open, and on which a ``listener`` may listen. Linux."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((HOST, 0))
    return made


# -- in a process of its own -------------------------------------------------------------------------------------------


def serve_until_stdin_ends(app: ASGIApp, **config: Any) -> None:
    """Serve on a free port until standard input ends; the URL is the first line on standard output.

    What an application gives back when it ends is done by then (its ``lifespan``). ``config`` is uvicorn's.
    """
    server = uvicorn.Server(uvicorn.Config(app, **{**_ALWAYS, "log_level": "warning", **config}))
    with listener() as at:
        print(f"http://{HOST}:{at.getsockname()[1]}", flush=True)
        end_with_stdin(server)
        server.run(sockets=[at])


def end_with_stdin(server: uvicorn.Server) -> None:
    """Let a server end when our standard input does, which whoever started us holds: we do not outlive it."""

    def wait() -> None:
        # Not sys.stdin: a thread that waits inside it when the interpreter ends is a fatal error.
        while os.read(0, 1024):
            pass
        server.should_exit = True

    threading.Thread(target=wait, daemon=True).start()


class ServerProcess:
    """A Python program that serves: ``ServerProcess(["-m", "some.module", "argument"])`` or ``["file.py"]``.

    It tells its URL in its first line on standard output and ends with its standard input. ``url`` is without a slash
    at its end. The repository's sources can be imported in it.

    Raises:
        RuntimeError: it did not start; its own words went to standard error.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        path = os.pathsep.join(filter(None, [str(ROOT / "py_src"), str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdout is not None
        found = re.search(r"https?://[^\s/]+", self._process.stdout.readline())
        if found is None:
            self.kill()
            raise RuntimeError(f"the server did not start: {' '.join(self._arguments)}")
        self.url = found[0]

    @property
    def pid(self) -> int:
        return self._process.pid

    def died(self) -> int:
        """Wait until it ends by itself; its exit status, negative for a signal."""
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        """End it at once, wherever it is (SIGKILL)."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Let it end and wait for it; a second time does nothing.

        Raises:
            RuntimeError: it did not end in time. It was killed.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the server did not end within {PATIENCE:g} s: {' '.join(self._arguments)}") from None
        finally:
            process.stdout.close()


# -- in a thread of ours -----------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """Tells when it answers, and tells its application when it is about to end."""

    def __init__(self, config: uvicorn.Config, answers: Future[_Server], closing: asyncio.Event) -> None:
        super().__init__(config)
        self._answers = answers
        self._closing = closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._answers.set_result(self)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing.set()
        await super().shutdown(sockets)


@contextlib.contextmanager
def in_thread(make_app: Callable[[asyncio.Event], Awaitable[ASGIApp]], **config: Any) -> Iterator[str]:
    """Serve on a free port in a thread until the block ends; gives the URL, where it answers already.

    ``make_app`` is called on the server's own event loop. Its argument is set when the block ends, so that a request
    that is made to wait can end. ``config`` is uvicorn's.

    Raises:
        Exception: whatever ``make_app`` raised.
        RuntimeError: the application's ``lifespan`` failed, or the server did not start or end in time.
    """
    given = {**_ALWAYS, "log_level": "critical", "timeout_graceful_shutdown": 1, "timeout_keep_alive": 75}
    answers: Future[_Server] = Future()

    async def run(at: socket.socket) -> None:
        closing = asyncio.Event()
        made = uvicorn.Config(await make_app(closing), **{**given, **config})
        await _Server(made, answers, closing).serve(sockets=[at])

    def serve(at: socket.socket) -> None:
        try:
            asyncio.run(run(at))
        except SystemExit:  # uvicorn's word for it
            answers.set_exception(RuntimeError("the server did not start: its application's lifespan failed"))
        except BaseException as error:
            if answers.done():
                raise
            answers.set_exception(error)

    with listener() as at:
        thread = threading.Thread(target=serve, args=[at], daemon=True)
        thread.start()
        server = answers.result(PATIENCE)
        try:
            yield f"http://{HOST}:{at.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
        if thread.is_alive():
            raise RuntimeError(f"the server did not end within {PATIENCE:g} s")
