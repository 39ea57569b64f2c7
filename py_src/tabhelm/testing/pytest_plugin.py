"""pytest fixtures: a fresh Chromium for each test, and a report of its tabs when the test fails.

Use it from the conftest of the folder whose tests need tabs::

    from tabhelm.testing.pytest_plugin import *

It needs pytest-asyncio in ``auto`` mode. Tests that use one of these fixtures run on the session's event loop, where
the one Playwright driver lives; all others keep the loop they have.

Of a failed test, the console messages of all its tabs and shared workers and a screenshot of each tab are kept in a
folder below ``TABHELM_ARTIFACTS`` (default: pytest's temporary folder), which the failure report names.

A test that fails beside a tab whose renderer died unasked fails with :class:`TabGone`, from what it raised itself.
Where a page is to crash by its own doing, say ``tab.doomed = True`` before.
"""

from __future__ import annotations

import os
import re
import unittest
from collections.abc import AsyncIterator, Awaitable, Generator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio
from playwright.async_api import Playwright, async_playwright

from .browser import ChaosBrowser
from .errors import TabGone
from .process import find_chromium

__all__ = [
    "browser",
    "chromium_path",
    "launch_browser",
    "playwright_driver",
    "pytest_collection_modifyitems",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
]

CONSOLE_LINES = 60  # of each failed test, shown in the report; the file has all
_FAILED = pytest.StashKey[bool]()
_BROWSERS = pytest.StashKey[list[ChaosBrowser]]()


class LaunchBrowser(Protocol):
    """What the fixture ``launch_browser`` is."""

    def __call__(self, *, extra_args: Sequence[str] = (), profile: Path | None = None) -> Awaitable[ChaosBrowser]: ...


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Path of the Chromium to use. Override it to choose another."""
    return find_chromium()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def playwright_driver() -> AsyncIterator[Playwright]:
    """The one Playwright driver of the session: it takes longer to start than a browser."""
    async with async_playwright() as driver:
        yield driver


@pytest_asyncio.fixture(loop_scope="session")
async def launch_browser(
    request: pytest.FixtureRequest,
    chromium_path: str,
    playwright_driver: Playwright,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[LaunchBrowser]:
    """Starts as many browsers as the test asks for, with fresh profiles unless one is given; all end with the test."""
    browsers: list[ChaosBrowser] = []
    async with AsyncExitStack() as stack:

        async def launch(*, extra_args: Sequence[str] = (), profile: Path | None = None) -> ChaosBrowser:
            opening = ChaosBrowser.launch(
                chromium_path, extra_args=extra_args, profile=profile, playwright=playwright_driver
            )
            browsers.append(await stack.enter_async_context(opening))
            look_after(request, browsers[-1])
            return browsers[-1]

        yield launch
        if has_failed(request):
            for number, each in enumerate(browsers, start=1):
                files = await each.save_report(report_folder(request, tmp_path_factory) / f"browser-{number}")
                # Printed during the teardown of a failed test, so pytest shows it with the failure.
                print(f"tabs of browser {number}: {', '.join(map(str, files))}")
                print("\n".join(files[0].read_text(encoding="utf-8").splitlines()[-CONSOLE_LINES:]))


@pytest_asyncio.fixture(loop_scope="session")
async def browser(launch_browser: LaunchBrowser) -> ChaosBrowser:
    """A fresh browser with a fresh profile, in about 0.4 s."""
    return await launch_browser()


def look_after(request: pytest.FixtureRequest, browser: ChaosBrowser) -> None:
    """Should the test fail, and a tab of this browser have crashed by itself, the failure says so."""
    browsers = request.node.stash.setdefault(_BROWSERS, [])
    browsers.append(browser)
    request.addfinalizer(lambda: browsers.remove(browser))


def has_failed(request: pytest.FixtureRequest) -> bool:
    """Whether the test that is being torn down has failed."""
    return bool(request.node.stash.get(_FAILED, False))


def report_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the report of this test's tabs belongs."""
    root = os.environ.get("TABHELM_ARTIFACTS") or tmp_path_factory.getbasetemp() / "artifacts"
    return Path(root) / re.sub(r"[^\w.-]+", "-", request.node.nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that use a browser on the loop where its driver lives."""
    for item in items:
        if "playwright_driver" in getattr(item, "fixturenames", ()) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that failed beside a tab that nobody asks any more, for its renderer died, fails for that.

    Raises:
        TabGone: from what the test itself raised.
    """
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        if isinstance(error, TabGone | pytest.xfail.Exception | unittest.SkipTest):
            raise
        living = [each for each in item.stash.get(_BROWSERS, []) if each.alive]
        dead = next((tab for each in living for tab in each.tabs if tab.crashed_by_itself), None)
        if dead is None:
            raise
        words = dead.browser.process.last_words()
        raise TabGone(f"{dead!r} is dead: its renderer crashed or was killed, unasked; {words}") from error


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test failed, for the teardown of its browsers."""
    report = yield
    if report.when == "setup":
        item.stash[_FAILED] = False  # one that is tried once more begins anew
    if report.failed:
        item.stash[_FAILED] = True
    return report
