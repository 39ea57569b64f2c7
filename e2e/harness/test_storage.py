"""Storage that vanishes or is full."""

from __future__ import annotations

from tabhelm.testing import ChaosBrowser

from .page_scripts import OPEN_DATABASE, PUT


async def test_clearing_closes_an_open_connection(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    await a.evaluate(OPEN_DATABASE)
    await a.evaluate("() => { localStorage.setItem('kept', 'yes'); }")
    assert await a.evaluate(PUT, 10) == "complete"
    await browser.storage_clear(site, "indexeddb")
    await a.until("() => globalThis.databaseClosed", 10)
    assert await a.evaluate("() => indexedDB.databases()") == []
    assert await a.evaluate("() => localStorage.getItem('kept')") == "yes"
    await browser.storage_clear(site)
    await a.until("() => localStorage.getItem('kept') === null", 10)


async def test_a_write_beyond_the_quota_aborts(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    await a.evaluate(OPEN_DATABASE)
    await browser.quota(site, 100_000)
    assert await a.evaluate(PUT, 1_000_000) == "abort QuotaExceededError"
    await browser.quota(site, None)
    assert await a.evaluate(PUT, 1_000_000) == "complete"
