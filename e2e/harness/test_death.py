"""Tabs and browsers that end: what is freed, what is told, what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tabhelm.testing import BrowserGone, ChaosBrowser, ChaosTab, TabGone, wait_for
from tabhelm.testing.process import process_running
from tabhelm.testing.pytest_plugin import LaunchBrowser

from .page_scripts import HOLD, WAIT

ENDS: dict[str, Callable[[ChaosTab], Awaitable[None]]] = {
    "close": lambda tab: tab.close(),
    "close abruptly": lambda tab: tab.close(abrupt=True),
    "crash": lambda tab: tab.crash(),
    "kill": lambda tab: tab.kill_process(),
}


@pytest.mark.parametrize("end", ENDS)
async def test_an_ended_tab_frees_its_lock(browser: ChaosBrowser, site: str, end: str) -> None:
    a = await browser.new_tab(site)
    b = await browser.new_tab(site)
    await a.evaluate(HOLD, "helm")
    await b.evaluate(WAIT, "helm")
    assert not await b.evaluate("() => globalThis.got ?? false")
    await ENDS[end](a)
    await b.until("() => globalThis.got", 10)
    with pytest.raises(TabGone, match="tab 1"):
        await a.evaluate("() => 1")
    await a.close()
    assert browser.tabs == [b]


@pytest.mark.parametrize("fault", ["hang", "stop", "freeze"])
@pytest.mark.parametrize("end", ["close", "kill"])
async def test_a_stuck_tab_can_be_ended(browser: ChaosBrowser, site: str, fault: str, end: str) -> None:
    a = await browser.new_tab(site)
    await {"hang": lambda: a.hang(60), "stop": a.stop, "freeze": a.freeze}[fault]()
    await ENDS[end](a)
    assert a.gone


async def test_an_ordinary_close_lets_the_page_say_goodbye_and_an_abrupt_one_does_not(
    browser: ChaosBrowser, site: str
) -> None:
    listener = await browser.new_tab(site)
    await listener.evaluate(
        """() => {
          globalThis.heard = [];
          globalThis.bus = new BroadcastChannel("bus");
          bus.onmessage = ({ data }) => heard.push(data);
        }"""
    )
    for word in ("abrupt", "ordinary"):
        tab = await browser.new_tab(site)
        await tab.evaluate(
            """(word) => {
              const bus = new BroadcastChannel("bus");
              addEventListener("pagehide", () => bus.postMessage(word));
            }""",
            word,
        )
        await tab.close(abrupt=word == "abrupt")
    await listener.until("() => heard.length > 0", 10)
    assert await listener.evaluate("() => heard") == ["ordinary"]


async def test_each_tab_has_its_own_renderer(browser: ChaosBrowser, site: str) -> None:
    tabs = [await browser.new_tab(site) for _ in range(3)]
    pids = [await tab.pid() for tab in tabs]
    assert len(set(pids)) == 3
    for tab in tabs:
        assert 5e6 < await tab.memory_pss() < 1e9
    await tabs[0].navigate("/elsewhere")
    assert process_running(await tabs[0].pid())
    assert await tabs[0].pid() not in pids[1:]


async def test_a_dead_browser_is_a_clear_error(browser: ChaosBrowser, site: str) -> None:
    tab = await browser.new_tab(site)
    os.kill(browser.process.pid, signal.SIGKILL)
    await wait_for(lambda: not browser.alive, 10, "the browser to be known dead")
    with pytest.raises(BrowserGone, match="was killed by signal 9"):
        await tab.evaluate("() => 1")
    with pytest.raises(BrowserGone):
        await browser.new_tab(site)


async def test_a_browser_that_cannot_start_is_a_clear_error(tmp_path: Path, chromium_path: str) -> None:
    with pytest.raises(BrowserGone, match="no-such-browser"):
        async with ChaosBrowser.launch(tmp_path / "no-such-browser"):
            pass
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(BrowserGone, match=r"ended with code 3; its last words: out of luck"):
        async with ChaosBrowser.launch(broken):
            pass


async def test_nothing_is_left_of_a_browser(chromium_path: str, site: str) -> None:
    with pytest.raises(RuntimeError, match="the test fails"):
        async with ChaosBrowser.launch(chromium_path) as browser:
            tabs = [await browser.new_tab(site) for _ in range(2)]
            pids = [browser.process.pid, *[await tab.pid() for tab in tabs]]
            profile = browser.process.profile
            assert profile.exists()
            await tabs[0].stop()
            raise RuntimeError("the test fails")
    assert not profile.exists()
    await wait_for(lambda: not any(map(process_running, pids)), 10, f"the processes {pids} to be gone")


@pytest.mark.parametrize("program_end", ["exit", "killed"])
async def test_a_browser_dies_with_its_program(chromium_path: str, program_end: str) -> None:
    program = f"""
import asyncio, os, signal
from tabhelm.testing.process import ChromiumProcess
process = asyncio.run(ChromiumProcess.start({chromium_path!r}))
print(process.pid, process.profile, flush=True)
if {program_end == "killed"}:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == (-signal.SIGKILL if program_end == "killed" else 0), done.stderr
    pid, profile = done.stdout.split()
    await wait_for(lambda: not process_running(int(pid)), 10, f"Chromium {pid} to be gone")
    await wait_for(lambda: not Path(profile).exists(), 10, f"its profile {profile} to be gone")


async def test_two_browsers_are_two_worlds(launch_browser: LaunchBrowser, site: str) -> None:
    one, two = await launch_browser(), await launch_browser()
    a, b = await one.new_tab(site), await two.new_tab(site)
    await a.evaluate("() => { localStorage.setItem('who', 'one'); }")
    await a.evaluate(HOLD, "helm")
    await b.evaluate(HOLD, "helm")  # at once: nobody holds it there
    assert await b.evaluate("() => localStorage.getItem('who')") is None
    # Both are in front of their own browser.
    assert await a.evaluate("() => document.visibilityState") == "visible"
    assert await b.evaluate("() => document.visibilityState") == "visible"
