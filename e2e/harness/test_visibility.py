"""Hidden is really hidden, frozen really stands still."""

from __future__ import annotations

import asyncio

import pytest

from tabhelm.testing import ChaosBrowser, ChaosTab, TabUnresponsive

from .page_scripts import TICK

_NOTE = "() => { globalThis.at = []; setInterval(() => at.push(performance.now()), 50); }"
_MEDIAN_GAP = """() => {
  const gaps = at.slice(1).map((each, index) => each - at[index]).sort((one, other) => one - other);
  return gaps[gaps.length >> 1];
}"""


async def tick_rate(tab: ChaosTab, seconds: float) -> float:
    """Ticks of 50 ms per second, over a while."""
    before = await tab.evaluate("() => [ticks, performance.now()]")
    await asyncio.sleep(seconds)
    after = await tab.evaluate("() => [ticks, performance.now()]")
    return float((after[0] - before[0]) / (after[1] - before[1]) * 1000)


async def test_the_newest_tab_is_in_front_and_the_others_are_hidden(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    b = await browser.new_tab(site)
    state = "() => document.visibilityState"
    await a.until("() => document.visibilityState === 'hidden'", 10)
    assert await b.evaluate(state) == "visible"
    await a.show()
    assert [await a.evaluate(state), await b.evaluate(state)] == ["visible", "hidden"]
    await a.hide()
    assert [await a.evaluate(state), await b.evaluate(state)] == ["hidden", "hidden"]


async def test_timers_of_a_hidden_tab_are_throttled(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    b = await browser.new_tab(site)
    await b.show()
    for tab in (a, b):
        await tab.evaluate(_NOTE)
    for tab, count in ((a, 5), (b, 30)):
        await tab.until(f"() => at.length >= {count}", 60)
    # Medians: a machine that stands still for a moment makes a gap in either.
    assert await a.evaluate(_MEDIAN_GAP) >= 500, "at most two a second"
    assert await b.evaluate(_MEDIAN_GAP) <= 1000 / 6, "at least six a second"


async def test_freezing_stops_the_timers_until_the_thaw(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    await a.evaluate(TICK)
    await a.until("() => ticks > 0", 10)
    await a.evaluate(
        "() => { globalThis.seen = []; document.onfreeze = document.onresume = (e) => seen.push(e.type); }"
    )
    await a.freeze()
    assert await a.evaluate("() => seen") == ["freeze"]
    assert await a.evaluate("() => document.visibilityState") == "hidden"
    assert await tick_rate(a, 2.5) == 0
    await a.thaw()
    assert await a.evaluate("() => seen") == ["freeze", "resume"]
    stood = await a.evaluate("() => ticks")
    await a.until(f"() => ticks > {stood}", 10)
    await a.thaw()  # a page that is not frozen: nothing happens
    await a.freeze()
    assert await a.evaluate("() => seen") == ["freeze", "resume", "freeze"]


async def test_a_frozen_tab_thaws_when_it_is_shown(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    await a.evaluate(TICK)
    await a.freeze()
    await a.show()
    stood = await a.evaluate("() => ticks")
    await a.until(f"() => ticks > {stood}", 10)


async def test_a_stopped_renderer_answers_nothing_and_goes_on_later(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    b = await browser.new_tab(site)
    await a.evaluate(TICK)
    await a.stop()
    with pytest.raises(TabUnresponsive, match=r"tab 1 .* did not answer within 0.5 s"):
        await a.evaluate("() => 1", timeout=0.5)
    assert await b.evaluate("() => 1") == 1
    await a.cont()
    assert await a.evaluate("() => ticks") >= 0


async def test_a_hung_tab_is_silent_for_that_long_only(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    b = await browser.new_tab(site)
    await a.hang(6)
    with pytest.raises(TabUnresponsive):
        await a.evaluate("() => 1", timeout=1)
    assert await b.evaluate("() => 1", timeout=4) == 1
    assert await a.evaluate("() => 1") == 1
