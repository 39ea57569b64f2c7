"""What few pages use lies in a file of its own: when it cannot be had, and that it is there when offline."""

from __future__ import annotations

import pytest

from tabhelm.testing import ChaosBrowser

from .pages import try_join, works
from .site import OddSite

_LISTEN = """async () => {
  window.wrong = [];
  addEventListener("unhandledrejection", ({ reason }) => wrong.push(String(reason)));
  window.tabhelm = await import("/tabhelm/tabhelm.mjs");
}"""
_ERROR = """async () => {
  try {
    await tab.lock("case", () => {});
    return null;
  } catch (error) {
    return { name: error.name, code: error.code, message: error.message, ours: error instanceof tabhelm.TabhelmError };
  }
}"""


@pytest.mark.parametrize("how", ["missing", "page", "older"])
async def test_without_it_a_page_leads_and_sends_and_is_told_what_is_missing(
    browser: ChaosBrowser, odd: OddSite, how: str
) -> None:
    if how == "older":
        odd.does.script("/tabhelm/extras.mjs", "export const of = () => { throw new Error('it is of build 0'); };")
    else:
        odd.does.spoilt["extras.mjs"] = how
    tab = await browser.new_tab(f"{odd.url}/blank")
    await tab.evaluate(_LISTEN)
    assert (await try_join(tab)).get("host") == "shared"
    await works(tab)
    told = await tab.evaluate(_ERROR)
    assert (told["name"], told["code"], told["ours"]) == ("TabhelmError", "no-extras", True), told
    assert "extras.mjs" in told["message"]
    # Whose policy has functions to be asked may not lead, and says why.
    await tab.evaluate("() => { window.picky = tab.lead('picky', () => {}, { eligible: () => true }); }")
    status = await tab.until(
        "() => picky.status.reason === 'no-extras' && picky.status", what="the election to say why"
    )
    assert status == {"state": "idle", "reason": "no-extras"}
    assert (await tab.evaluate("() => tab.diagnose()"))["engine"]["error"], "a diagnosis says what it can"
    assert await tab.evaluate("() => wrong") == []


async def test_a_page_that_joined_has_it_when_it_goes_offline(browser: ChaosBrowser, odd: OddSite) -> None:
    tab = await browser.new_tab(f"{odd.url}/blank")
    await try_join(tab)
    await tab.until(
        "() => performance.getEntriesByType('resource').some(({ name }) => name.endsWith('/extras.mjs'))",
        what="it to be fetched beforehand",
    )
    odd.does.spoilt["extras.mjs"] = "missing"
    assert await tab.evaluate("() => tab.lock('case', () => 'held')") == "held"
