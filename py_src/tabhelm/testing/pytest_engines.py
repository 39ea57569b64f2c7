"""pytest fixtures for cases that run in every browser engine: write ``async def test_x(driven): …`` once.

``driven`` is a running browser without tabs, a :class:`~tabhelm.testing.driver.DrivenBrowser`, once for each engine of
``ENGINES``; choose with ``-k firefox``. Firefox and WebKitGTK take seconds to start, so that one process serves many
tests, each with a fresh profile (Firefox) or meant for a fresh origin (WebKitGTK: give each test a port of its own). A
failed test's browser is not used again.

An engine that this machine does not have is skipped with its reason; with ``TABHELM_REQUIRE_ENGINES=1`` it is an error.
Use it beside :mod:`tabhelm.testing.pytest_plugin`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest
import pytest_asyncio
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Playwright

from .browser import ChaosBrowser
from .driver import ENGINES, DrivenBrowser, Engine
from .errors import BrowserGone, ChaosError
from .firefox import FirefoxBrowser, find_firefox
from .pytest_plugin import has_failed, look_after, report_folder
from .webkit import WebKitBrowser, find_webkit

__all__ = ["driven", "engine", "engine_pool"]


class EnginePool:
    """At most one running browser of each engine."""

    def __init__(self, playwright: Playwright, chromium_path: str) -> None:
        self._playwright = playwright
        self._chromium_path = chromium_path
        self._running: dict[Engine, tuple[DrivenBrowser, AsyncExitStack]] = {}

    async def get(self, engine: Engine) -> DrivenBrowser:
        """The running browser of this engine, without tabs; started if there is none."""
        if engine in self._running:
            browser = self._running[engine][0]
            try:
                if browser.alive:
                    await _reset(browser)
                    return browser
            except (ChaosError, PlaywrightError, TimeoutError):
                pass  # what is left of it is of no use
            await self.end(engine)
        stack = AsyncExitStack()
        browser = await stack.enter_async_context(self._launch(engine))
        self._running[engine] = (browser, stack)
        return browser

    def _launch(self, engine: Engine) -> AbstractAsyncContextManager[DrivenBrowser]:
        match engine:
            case "chromium":
                return ChaosBrowser.launch(self._chromium_path, playwright=self._playwright)
            case "firefox":
                return FirefoxBrowser.launch(playwright=self._playwright)
            case "webkit":
                return WebKitBrowser.launch()

    async def end(self, engine: Engine) -> None:
        """End the browser of this engine, if one runs."""
        if engine in self._running:
            await self._running.pop(engine)[1].aclose()

    async def close(self) -> None:
        """End all."""
        for engine in list(self._running):
            await self.end(engine)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine_pool(chromium_path: str, playwright_driver: Playwright) -> AsyncIterator[EnginePool]:
    """The browsers that run."""
    pool = EnginePool(playwright_driver, chromium_path)
    yield pool
    await pool.close()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine under test."""
    return require_engine(request.param)


def require_engine(name: Engine) -> Engine:
    """Skip the test if this machine does not have the engine, or let it fail if every engine is asked for."""
    finders: dict[Engine, Callable[[], object]] = {"firefox": find_firefox, "webkit": find_webkit}
    try:
        finders.get(name, lambda: None)()
    except BrowserGone as error:
        if os.environ.get("TABHELM_REQUIRE_ENGINES") == "1":
            pytest.fail(f"{error} (TABHELM_REQUIRE_ENGINES=1 asks for every engine)")
        pytest.skip(str(error))
    return name


@pytest_asyncio.fixture(loop_scope="session")
async def driven(
    request: pytest.FixtureRequest,
    engine: Engine,
    engine_pool: EnginePool,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[DrivenBrowser]:
    """A browser of the engine under test, without tabs."""
    browser = await engine_pool.get(engine)
    if isinstance(browser, ChaosBrowser):
        look_after(request, browser)
    yield browser
    if has_failed(request):
        files = await browser.save_report(report_folder(request, tmp_path_factory) / engine)
        print(f"tabs of {engine}: {', '.join(map(str, files))}")
        print("\n".join(files[0].read_text(encoding="utf-8").splitlines()[-60:]))
        await engine_pool.end(engine)
    elif engine == "chromium":
        await engine_pool.end(engine)  # a fresh profile costs less than half a second


async def _reset(browser: DrivenBrowser) -> None:
    if isinstance(browser, FirefoxBrowser | WebKitBrowser):
        await browser.reset()
