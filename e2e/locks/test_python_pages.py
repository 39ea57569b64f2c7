"""Locks and single flight from Python that runs in the page itself, together with pages of the bundle."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import join, until
from e2e.python_pages.kit import PythonPage
from e2e.python_pages.site import PythonSite, serve

from tabhelm.testing import ChaosBrowser

from .bodies import FLIGHT, LOCK, end, fly, hold, inside, landed, outcome, queued, runs


@pytest.fixture
def python_site(bundle: Path, tmp_path: Path) -> Iterator[PythonSite]:
    with serve(bundle, tmp_path) as served:
        yield served


async def body(page: PythonPage, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async def so() -> dict[str, Any] | None:
        found: dict[str, Any] = await page("body", name)
        return found if condition(found) else None

    return await until(so, f"the body {name}")


def holds(found: dict[str, Any]) -> bool:
    return bool(found["inside"] and found["held"])


def over(found: dict[str, Any]) -> bool:
    return found["outcome"] is not None


async def test_a_python_page_and_pages_of_the_bundle_take_turns(browser: ChaosBrowser, python_site: PythonSite) -> None:
    page = await PythonPage.joined(browser, python_site)
    other = await PythonPage.joined(browser, python_site)
    tab = await browser.new_tab(f"{python_site.url}/blank")
    await join(tab)
    await page("hold", "one", {})
    await body(page, "one", holds)
    await hold(tab, timeoutMs=3_000)
    kind, error = await outcome(tab)
    assert error["holder"] == (await page("who"))["id"], "the page's own engine answers who holds it"
    await other("hold", "late", {"timeout": 3.0})
    found = await body(other, "late", over)
    assert found["outcome"][0] == "LockTimeout" and (await page("who"))["id"] in found["outcome"][1]
    await other("hold", "gone", {})
    await queued(tab, 1, 1)
    await other("cancel", "gone")
    await queued(tab, 1, 0)

    # Frozen: it lets go inside its freeze handler, and hears of it at the thaw.
    await hold(tab)
    await queued(tab, 1, 1)
    await page.tab.freeze()
    await inside(tab)
    await page.tab.thaw()
    lost = await body(page, "one", over)
    assert lost["outcome"] == ["LockLost", f"lock {LOCK!r} is held no more: frozen"]

    # Frozen while it waits: out of the line, and in it again.
    await page("hold", "two", {})
    await queued(tab, 1, 1)
    await page.tab.freeze()
    await queued(tab, 1, 0)
    await page.tab.thaw()
    await queued(tab, 1, 1)

    # The same in the back/forward cache.
    await page.tab.navigate("/blank?elsewhere")
    await queued(tab, 1, 0)
    assert await page.tab.back(), await page.tab.not_restored_reasons()
    await queued(tab, 1, 1)
    await end(tab)
    await body(page, "two", holds)
    await page.tab.navigate("/blank?elsewhere")
    await queued(tab, 0, 0)
    assert await page.tab.back(), await page.tab.not_restored_reasons()
    assert (await body(page, "two", over))["outcome"] == ["LockLost", f"lock {LOCK!r} is held no more: closing"]

    # Single flight between the two kinds, both ways.
    await page("fly", "f", {"n": [1, None, "ä"]})
    await queued(tab, 1, 0, FLIGHT)
    await fly(tab)
    await queued(tab, 1, 1, FLIGHT)
    await page("end", "f")
    assert await landed(tab) == ["value", {"n": [1, None, "ä"]}]
    assert await runs(tab) == 0
    await fly(tab, "own", value={"js": True})
    await queued(tab, 1, 0, FLIGHT)
    await other("fly", "g", 1)
    await queued(tab, 1, 1, FLIGHT)
    await tab.evaluate("() => flights.own.end()")

    async def flown() -> dict[str, Any] | None:
        found: dict[str, Any] = await other("flown", "g")
        return found if found["outcome"] else None

    assert await until(flown, "the flight") == {"ran": False, "outcome": ["value", {"js": True}]}

    took = await page("many_locks", 200)
    print(f"Python in the page: p50 {statistics.median(took):.2f} ms, p95 {sorted(took)[190]:.2f} ms")
    for each in (page, other):
        assert await each.uncaught() == []
