"""The server as a process: how it starts, ends, dies and comes back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tabhelm.testing import wait_for
from tabhelm_build.demo_app import ROOT
from tabhelm_build.demo_server import DemoServer

from .conftest import Writer

SOURCES = {**os.environ, "PYTHONPATH": str(ROOT / "py_src")}


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/blank", verify=False, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def python(*arguments: str, folder: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    env = SOURCES if folder is None else {**SOURCES, "TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, *arguments], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(*arguments: str) -> tuple[int, str, str]:
    with python("-m", "tabhelm_build.demo_server", "--no-open", *arguments) as process:
        out, err = process.communicate(timeout=30)
        return process.returncode, out, err


def test_a_port_in_use_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = run("--no-bundle", "--port", str(port))
    assert code == 1 and out == ""
    assert err == f"demo: port {port} is in use: choose another with --port N, or a free one with --port 0\n"


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_cannot_be_is_told_in_one_line(port: str) -> None:
    code, _, err = run("--no-bundle", "--port", port)
    assert code == 1
    assert err.startswith(f"demo: port {port} cannot be used: ") and err.count("\n") == 1


def test_a_missing_bundle_is_told_in_one_line(tmp_path: Path) -> None:
    code, _, err = run("--dist", str(tmp_path), "--port", "0")
    assert (code, err) == (1, f"demo: {tmp_path} holds no bundle: run python build.py bundle\n")


def test_a_database_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    code, _, err = run("--no-bundle", "--port", "0", "--database", str(tmp_path / "missing" / "x.db"))
    assert code == 1
    assert err.startswith("demo: ") and "x.db" in err and err.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_by_a_signal_it_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    command = ["-m", "tabhelm_build.demo_server", "--no-open", "--no-bundle", "--port", "0"]
    with python(*command, folder=tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("The demo runs at http://127.0.0.1:")
        assert list(tmp_path.iterdir()), "the temporary database"
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
async def test_it_cannot_outlive_a_parent_that_is_killed() -> None:
    program = (
        "import time; from tabhelm_build.demo_server import DemoServer\n"
        "with DemoServer(dist=None) as s: print(s.url, flush=True); time.sleep(60)"
    )
    with python("-c", program) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert answers(url)
        parent.kill()
        parent.wait()
        await wait_for(lambda: not answers(url), 10, "the server ended with its parent")


def test_killed_it_comes_back_with_its_port_and_its_memory() -> None:
    with DemoServer(dist=None) as server:
        url, ann = server.url, Writer(server.url)
        assert ann.send("before").status_code == 200
        server.kill()
        assert not answers(url)
        server.start()
        assert server.url == url
        ann.seq = 0
        assert ann.send("late").status_code == 409, "it remembers the marks"
        assert [effect["payload"] for effect in server.effects()] == ["before"]
        database = server.database
        ann.client.close()
    assert not answers(url)
    assert not database.exists()


async def test_what_it_holds_does_not_keep_it() -> None:
    with DemoServer(dist=None) as server:
        server.faults(hold=True)
        ann = Writer(server.url)
        sending = threading.Thread(target=lambda: pytest.raises(httpx.TransportError, ann.send, "held"), daemon=True)
        sending.start()
        await wait_for(lambda: server.held() == 1, 10, "the write is held")
        server.stop()
        sending.join(10)
        assert not sending.is_alive()
        server.start()
        assert server.effects() == [], "it was broken off"
        ann.client.close()
