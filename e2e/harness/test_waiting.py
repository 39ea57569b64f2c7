"""Waiting, and what a failed test leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Error as PlaywrightError

from tabhelm.testing import ChaosBrowser, ScriptError, TabGone, WaitTimeout, wait_for


async def test_wait_for_returns_the_true_answer() -> None:
    answers = iter([0, "", None, "yes"])
    assert await wait_for(lambda: next(answers), 10, interval=0) == "yes"


async def test_wait_for_names_what_it_waited_for_and_the_last_answer() -> None:
    async def leaders() -> list[str]:
        return []

    with pytest.raises(WaitTimeout, match=r"waited 0.05 s for a leader; the last of \d+ answers was \[\]"):
        await wait_for(leaders, 0.05, "a leader", interval=0.01)


async def test_wait_for_asks_once_more_after_the_timeout() -> None:
    answers = iter([False, True])
    assert await wait_for(lambda: next(answers), 0.01, interval=0.05)


async def test_until_survives_a_navigation_and_names_the_tab(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(f"{site}/first")
    await a.evaluate("() => { setTimeout(() => { location.href = '/second'; }, 50); }")
    await a.until("() => location.pathname === '/second'", 10)
    with pytest.raises(WaitTimeout, match=r"a third page in tab 1 \(.*/second\); the last of \d+ answers was False"):
        await a.until("() => location.pathname === '/third'", 1.5, "a third page")
    await a.hang(60)
    with pytest.raises(WaitTimeout, match="the tab did not answer"):
        await a.until("() => true", 0.5)


async def test_until_names_the_expression_that_threw_and_the_pages_error(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    with pytest.raises(ScriptError) as caught:
        await a.until("() => document.querySelector('#none').textContent === 'x'", 10, "the text")
    said = str(caught.value)
    assert said.startswith("waited for the text in tab 1 (")
    assert "() => document.querySelector('#none').textContent === 'x'" in said
    assert "TypeError: Cannot read properties of null" in said and "Page.evaluate" not in said
    assert isinstance(caught.value.__cause__, PlaywrightError)
    await a.close()
    with pytest.raises(TabGone):
        await a.until("() => true", 0.5)


async def test_the_report_tells_what_every_tab_said_and_shows_it(
    browser: ChaosBrowser, site: str, tmp_path: Path
) -> None:
    a = await browser.new_tab(site)
    b = await browser.new_tab(f"{site}/second")
    await a.evaluate("() => { console.warn('low water'); setTimeout(() => { throw new Error('aground'); }, 0); }")
    await wait_for(lambda: len(a.log) >= 2, 10, "the messages to arrive")
    await b.crash()
    text, *pictures = await browser.save_report(tmp_path / "report", timeout=30)
    said = text.read_text()
    assert "warning: low water" in said
    assert "uncaught: aground" in said
    assert "<ChaosTab 2 crashed" in said
    assert [picture.name for picture in pictures] == ["tab-1.png"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
