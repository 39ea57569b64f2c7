"""An engine that is suspended with its only page must not keep that page from coming back."""

from __future__ import annotations

import pytest
from e2e.kit import Site, join, leader

from tabhelm.testing import ChaosBrowser

_QUICK = """async () => {
  for (let n = 0; n < 10; n++) {
    const asked = performance.now();
    await tab.metrics();
    if (performance.now() - asked > 20) return false;
  }
  return true;
}"""
"""The engine answers at once, again and again: it will be as quick to read the goodbye."""


@pytest.mark.alone  # the engine has ten milliseconds to read the goodbye: not to be had beside other browsers
async def test_a_page_whose_engine_others_know_comes_back_out_of_the_cache(
    browser: ChaosBrowser, two_builds: Site
) -> None:
    site = two_builds
    first = await site.joined(browser)
    await site.stand(first)
    await leader([first])
    second = await site.joined(browser, base="/tabhelm2")
    await site.stand(second)
    # Each engine knows of the other, and watches it.
    for tab in (first, second):
        await tab.until("() => tab.presence().tabs.length === 2", what="both tabs to be in the roster")
    await first.show()
    # Only then are the engines done with that news: the goodbye finds its one idle.
    for tab, seen in ((first, "visible === self"), (second, "visible !== self")):
        only = f"() => tab.presence().tabs.every(({{ self, visible }}) => {seen})"
        await tab.until(only, what=f"{tab} to hear that only the first is visible")
    await first.until(_QUICK, what="a machine that has nothing else to do")
    await first.navigate("/blank2")
    await leader([second])
    await second.until("() => tab.presence().tabs.length === 1", what="the cached tab to be out of the roster")
    await second.evaluate("() => tab.update({ capabilities: ['news.v1'] })")  # a message on the channel meanwhile
    restored = await first.back()
    assert restored, await first.not_restored_reasons()
    await first.until("() => tab.presence().tabs.length === 2", what="the page to have joined again")
    old = await leader([second])
    await second.close()
    await leader([first], above=old.epoch)


async def test_an_engine_without_pages_holds_nothing_and_serves_the_next_page(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await site.joined(browser)
    await site.stand(tab)
    old = await leader([tab])
    before = await tab.evaluate("async () => { const { id } = tab.engine; await tab.leave('enough'); return id; }")
    await tab.until(
        "async () => { const now = await navigator.locks.query(); return !(now.held.length + now.pending.length); }",
        what="every lock to be free",
    )
    # Nor does its database connection stand in anybody's way.
    deleted = """() => new Promise((resolve) => {
      const request = indexedDB.deleteDatabase("tabhelm:e2e");
      request.onsuccess = () => resolve("deleted");
      request.onblocked = () => resolve("blocked");
    })"""
    assert await tab.evaluate(deleted) == "deleted"
    facts = await join(tab)
    assert facts["engine"]["id"] == before, "the same engine goes on"
    await site.stand(tab)
    await leader([tab], above=old.epoch)
