"""Firefox: private windows, which rejected databases for years, and blocked site data."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import PATIENCE_MS
from e2e.serving.pages import FLUSHED, JOIN, WORK
from e2e.serving.site import OddSite, serve
from playwright.async_api import Page, Playwright

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
pytestmark = pytest.mark.skipif(FIREFOX is None, reason="no Firefox is installed")
OpenPage = Callable[[dict[str, Any]], AbstractAsyncContextManager[Page]]


@pytest.fixture
def site(bundle: Path) -> Iterator[OddSite]:
    with serve(bundle) as served:
        yield served


@pytest.fixture
def open_page(playwright_driver: Playwright, site: OddSite) -> OpenPage:
    """Open a Firefox with preferences and an empty page in it."""

    @asynccontextmanager
    async def opened(preferences: dict[str, Any]) -> AsyncIterator[Page]:
        firefox = await playwright_driver.firefox.launch(
            channel="moz-firefox", executable_path=FIREFOX, firefox_user_prefs=preferences
        )
        try:
            page = await firefox.new_page()
            await page.goto(f"{site.url}/blank")
            yield page
        finally:
            await firefox.close()

    return opened


@pytest.mark.parametrize("host", ["shared", "window"])
async def test_a_private_window_takes_part(open_page: OpenPage, host: str) -> None:
    async with open_page({"browser.privatebrowsing.autostart": True}) as page:
        result = await page.evaluate(JOIN, ["/tabhelm", {"host": host, "enginePatienceMs": PATIENCE_MS}])
        print(f"\nFirefox, private window, host {host}: {result}")
        assert result.get("host") == host, result
        await page.evaluate(WORK)
        await page.wait_for_function("() => election.status.state === 'leading'")
        await page.wait_for_function(FLUSHED)


async def test_blocked_site_data_is_named(open_page: OpenPage) -> None:
    async with open_page({"network.cookie.cookieBehavior": 2}) as page:
        result = await page.evaluate(JOIN, ["/tabhelm", {}])
        assert result.get("code") == "no-locks", result
        assert "locks are denied, allow site data: " in result["message"]


async def test_trusted_types_need_nothing_of_the_app(open_page: OpenPage, site: OddSite) -> None:
    from tabhelm_build.demo_app import POLICY

    policy = f"{POLICY}; require-trusted-types-for 'script'; trusted-types tabhelm"
    site.does.policies.update(blank=policy, tabhelm=policy)
    async with open_page({}) as page:
        result = await page.evaluate(JOIN, ["/tabhelm", {"enginePatienceMs": PATIENCE_MS}])
        assert result.get("host") == "shared", result
        await page.evaluate(WORK)
        await page.wait_for_function(FLUSHED)
