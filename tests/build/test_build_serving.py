"""Servers in a process and in a thread: how they begin, fail to begin, and end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tabhelm_build.serving import ServerProcess, in_thread, listener

PROGRAM = """
import os, signal, sys
from tabhelm_build.serving import serve_until_stdin_ends

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        open(sys.argv[1], "w").write("ended")
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] == "/die":
        os.kill(os.getpid(), signal.SIGKILL)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})

serve_until_stdin_ends(app)
"""


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """What ``ServerProcess`` is given; the file ``ended`` is written by the application's own end."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return [str(file), str(tmp_path / "ended")]


def test_answers_are_not_kept_back_for_company() -> None:
    with listener() as at:
        assert at.proto == socket.IPPROTO_TCP, "asyncio sets TCP_NODELAY only then"


def test_a_process_answers_and_ends_well(program: list[str], tmp_path: Path) -> None:
    server = ServerProcess(program)
    assert get(server.url) == b"hi"
    server.close()
    server.close()
    assert (tmp_path / "ended").read_text() == "ended" and server.died() == 0


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
def test_a_process_that_dies_says_how(program: list[str], tmp_path: Path) -> None:
    server = ServerProcess(program)
    try:
        with pytest.raises(OSError):
            get(f"{server.url}/die")
        assert server.died() == -signal.SIGKILL
    finally:
        server.kill()
    assert not (tmp_path / "ended").exists()


def test_a_process_that_does_not_start_is_told() -> None:
    with pytest.raises(RuntimeError, match="did not start: -c print"):
        ServerProcess(["-c", "print('no address')"])


def test_a_process_that_does_not_end_is_killed_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tabhelm_build.serving.PATIENCE", 0.2)
    server = ServerProcess(["-c", "import time; print('http://127.0.0.1:1', flush=True); time.sleep(60)"])
    with pytest.raises(RuntimeError, match="did not end within 0.2 s"):
        server.close()
    assert server.died() < 0


class App:
    """``/wait`` is answered when the server is about to end."""

    def __init__(self, closing: asyncio.Event, *, begins: bool = True) -> None:
        self._closing = closing
        self._begins = begins
        self.asked_to_wait = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            if not self._begins:
                raise KeyError("no database")
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["path"] == "/wait":
            self.asked_to_wait.set()
            await self._closing.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"hi"})


def test_a_thread_answers_and_what_waits_ends_with_the_block() -> None:
    made: list[App] = []
    answers: list[bytes] = []

    async def make(closing: asyncio.Event) -> ASGIApp:
        made.append(App(closing))
        return made[0]

    with in_thread(make) as url:
        assert get(url) == b"hi"
        waiting = threading.Thread(target=lambda: answers.append(get(f"{url}/wait")), daemon=True)
        waiting.start()
        assert made[0].asked_to_wait.wait(10)
    waiting.join(10)
    assert answers == [b"hi"]
    with pytest.raises(OSError):
        get(url)


def test_what_making_the_application_raises_is_raised() -> None:
    async def make(closing: asyncio.Event) -> ASGIApp:
        raise LookupError("no such bundle")

    with pytest.raises(LookupError, match="no such bundle"), in_thread(make):
        pytest.fail("it did not start")


def test_an_application_that_does_not_begin_is_told() -> None:
    async def make(closing: asyncio.Event) -> ASGIApp:
        return App(closing, begins=False)

    with pytest.raises(RuntimeError, match="lifespan failed"), in_thread(make, lifespan="on"):
        pytest.fail("it did not start")
