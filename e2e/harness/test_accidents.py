"""A renderer that dies unasked is named by the failure, whatever the test waited for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from playwright.async_api import Error as PlaywrightError

from tabhelm.testing import ChaosBrowser, wait_for

CONFTEST = "from tabhelm.testing.pytest_plugin import *\n"
TEST = """
import contextlib
from playwright.async_api import Error
from tabhelm.testing import wait_for

async def test_it(browser):
    tab = await browser.new_tab("about:blank")
    with contextlib.suppress(Error):
        await tab.page.goto("chrome://crash", timeout=20_000)
    await wait_for(lambda: tab.gone, 20, "the crash")
    {asked}
    assert False, "something else never came"
"""


async def test_only_a_death_that_nobody_asked_for_is_an_accident(browser: ChaosBrowser, site: str) -> None:
    unasked, asked, killed, fine = [await browser.new_tab(site) for _ in range(4)]
    await unasked.pid()
    await killed.kill_process()
    with contextlib.suppress(PlaywrightError):
        await unasked.page.goto("chrome://crash", timeout=20_000)
    await wait_for(lambda: unasked.gone, 20, "the crash")
    assert [tab.crashed_by_itself for tab in (unasked, killed, fine)] == [True, False, False]
    # Whose renderer that was, and who else lived there, nobody has looked up: now nothing is called an accident.
    await asked.crash()
    assert [tab.crashed_by_itself for tab in (unasked, asked)] == [False, False]


def test_the_failure_says_so_and_what_the_test_itself_said(tmp_path: Path, chromium_path: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_accident.py").write_text(TEST.format(asked="pass"))
    (tmp_path / "test_asked.py").write_text(TEST.format(asked="tab.doomed = True"))
    once_more = ["--reruns=1", "--only-rerun=its renderer crashed or was killed"]
    options = ["-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "-q", "-rfR", *once_more]
    environment = {**os.environ, "TABHELM_CHROMIUM": chromium_path}
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    said = done.stdout
    assert "2 failed, 1 rerun" in said, said + done.stderr
    assert "<ChaosTab 1 crashed" in said and "unasked" in said and "something else never came" in said
    (once_more_was,) = [line for line in said.splitlines() if line.startswith("RERUN")]
    assert "test_accident.py" in once_more_was
