"""A page that no engine will ever take again: its locks and flights settle."""

from __future__ import annotations

from e2e.page_client.conftest import JOIN
from e2e.page_client.conftest import origin as origin
from e2e.page_client.test_page_client import TELL

from tabhelm.testing import ChaosBrowser

CODE = "(error) => [error.code, error instanceof m.TabhelmError]"


async def test_a_final_refusal_settles_what_waits_and_what_is_asked_for_later(
    browser: ChaosBrowser, origin: str
) -> None:
    a = await browser.new_tab(f"{origin}/blank")
    await a.evaluate(JOIN, {})
    await a.evaluate(TELL, "fake:refuse:wrong-wire")
    await a.evaluate(
        "(code) => { window.told = [];"
        " const asked = [tab.lock('x', () => 1), tab.singleFlight('y', () => 1)];"
        " for (const each of asked) each.catch((error) => told.push([error.code, error instanceof m.TabhelmError])); }"
    )
    await a.evaluate("() => command(1, 'die')")
    await a.until("() => told.length === 2")
    assert await a.evaluate("told") == [["refused", True]] * 2
    for later in ("tab.lock('x', () => 1)", "tab.singleFlight('y', () => 1)"):
        assert await a.evaluate(f"() => {later}.catch({CODE})") == ["refused", True]
    assert await a.evaluate("uncaught") == []
