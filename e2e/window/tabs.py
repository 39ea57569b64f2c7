"""What the tests of the window host share: tabs that run their own Python, and what their locks are at."""

from __future__ import annotations

from typing import Any

from e2e.kit import DEFAULT_RESOURCE, STALL_MS, Site

from tabhelm.testing import ChaosBrowser, ChaosTab

LOCK = f"e2e:v1:leader:{DEFAULT_RESOURCE}"
_COUNT = """async (name) => {
  const { held, pending } = await navigator.locks.query();
  const count = (locks) => locks.filter((lock) => lock.name === name).length;
  return { held: count(held), pending: count(pending) };
}"""


async def joined(browser: ChaosBrowser, site: Site, host: str = "window", **options: Any) -> ChaosTab:
    """A joined tab; ``host`` is what ``join`` is asked for."""
    tab = await site.joined(browser, host=host, **options)
    if host != "auto":
        assert await tab.evaluate("() => tab.host") == host
    return tab


async def standing(
    browser: ChaosBrowser, site: Site, *hosts: str, join: dict[str, Any] | None = None, **policy: Any
) -> list[ChaosTab]:
    """One joined tab for each of ``hosts``, all standing for the same resource."""
    tabs = [await joined(browser, site, host, **(join or {})) for host in hosts]
    for tab in tabs:
        await site.stand(tab, **policy)
    return tabs


async def locks(tab: ChaosTab, name: str = LOCK) -> dict[str, int]:
    """How many requests for the lock are held and pending, in all contexts. Asking evicts cached pages."""
    found: dict[str, int] = await tab.evaluate(_COUNT, name)
    return found


async def watched(tab: ChaosTab, stall_ms: int = STALL_MS) -> None:
    """Show the tab, and wait until its engine has pinged it since: from now on it is not late for being hidden.

    ``stall_ms``: what it joined with; it is pinged at each quarter of that.
    """
    await tab.show()
    await tab.evaluate("() => { window.shownAt = performance.now(); }")
    await tab.until(f"() => performance.now() - shownAt > {stall_ms / 2}", what="two pings")


async def roster(tab: ChaosTab, count: int, timeout: float = 15.0) -> None:
    """Wait until the tab knows of so many tabs, itself among them."""
    await tab.until(f"() => tab.presence().tabs.length === {count}", timeout, f"{count} tabs in the roster")
