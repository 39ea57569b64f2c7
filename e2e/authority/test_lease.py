"""Pages of an insecure origin, which have no Web Locks: those that run Python themselves elect by lease.

(The conformance cases of both authorities run in all three engines in ``e2e/test_conformance.py``.)
"""

from __future__ import annotations

import time
from typing import Any

import pytest_asyncio
from e2e.python_pages.kit import PythonPage, one_leader
from e2e.python_pages.site import PythonSite
from e2e.serving.pages import JOIN

from tabhelm.testing import ChaosBrowser, wait_for
from tabhelm.testing.pytest_plugin import LaunchBrowser

INSECURE = "insecure.example"


@pytest_asyncio.fixture(loop_scope="session")
async def insecure(launch_browser: LaunchBrowser, site: PythonSite) -> ChaosBrowser:
    """A browser that takes this site for one of an insecure origin."""
    site.url = site.url.replace("127.0.0.1", INSECURE)
    return await launch_browser(extra_args=[f"--host-resolver-rules=MAP {INSECURE} 127.0.0.1"])


async def event(page: PythonPage, kind: str) -> dict[str, Any] | None:
    return next((each for each in await page("events") if each["type"] == kind), None)


async def test_two_pages_without_web_locks_elect_hand_over_and_survive_a_crash(
    insecure: ChaosBrowser, site: PythonSite
) -> None:
    pages = [await PythonPage.joined(insecure, site) for _ in range(2)]
    missing = "() => [isSecureContext, typeof navigator.locks]"
    assert await pages[0].tab.evaluate(missing) == [False, "undefined"]
    began = time.monotonic()
    for page in pages:
        await page("stand", "job")
    first = await one_leader(pages)
    print(f"\nfirst leader of an empty store after {time.monotonic() - began:.1f} s")
    other = pages[1 - pages.index(first)]
    told = await event(first, "degraded")
    assert told is not None and (told["from"], told["to"]) == ("web-locks", "indexeddb-lease"), told
    issued = await event(first, "epoch-issued")
    assert issued is not None and issued["authority"] == "indexeddb-lease"
    assert await first("write", "one") == 200
    await first("keep_headers", "old")

    began = time.monotonic()
    await first("leave")
    leading = await other.leads(above=issued["epoch"])
    print(f"handed over in {1000 * (time.monotonic() - began):.0f} ms")
    assert await first("write", "late", "old") == 409, "its token is stale"
    assert await other("write", "two") == 200

    third = await PythonPage.joined(insecure, site)
    await third("stand", "job")
    # The leader is behind the new tab now: its lease is longer, and shorter again when it is shown.
    await wait_for(lambda: lease_lasts(third, 200_000), 10.0, "the lease of a hidden page")
    await other.tab.show()
    await wait_for(lambda: lease_lasts(third, 15_000), 10.0, "the lease of a visible page")
    began = time.monotonic()
    await other.tab.crash()
    await third.tab.show()
    following = await third.leads(above=leading["epoch"], timeout=40.0)
    took = time.monotonic() - began
    print(f"after a crash: {took:.1f} s (a lease lasts 15 s)")
    assert following["epoch"] > leading["epoch"] and took > 5.0
    effects = await first.tab.evaluate("async () => (await fetch('/api/effects')).json()")
    assert [effect["payload"]["name"] for effect in effects] == ["one", "two"]
    for page in (first, third):
        assert await page.uncaught() == []


async def test_a_leader_whose_store_was_cleared_writes_itself_back(insecure: ChaosBrowser, site: PythonSite) -> None:
    page = await PythonPage.joined(insecure, site)
    await page("stand", "job")
    before = await page.leads()
    await insecure.storage_clear(site.url, "indexeddb")

    async def restored() -> bool:
        keys: list[str] = await page.tab.evaluate(KEYS)
        return "epoch:e2e:job" in keys and "lease:e2e:v1:leader:job" in keys

    await wait_for(restored, 20.0, "its epoch and its lease to be written back")
    now = await page("now", "job")
    assert (now["leads"], now["epoch"]) == (True, before["epoch"]), now
    assert await page.uncaught() == []


async def lease_lasts(page: PythonPage, milliseconds: int) -> bool:
    stored: dict[str, Any] = await page.tab.evaluate(STORED, "lease:e2e:v1:leader:job")
    return bool(stored["lease_ms"] == milliseconds)


STORED = """(key) => new Promise((resolve, reject) => {
  const opening = indexedDB.open("tabhelm:e2e");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const database = opening.result;
    const asking = database.transaction("fencing").objectStore("fencing").get(key);
    asking.onsuccess = () => { database.close(); resolve(asking.result); };
  };
})"""

# Opened only once it is there again: whoever opens what is gone makes it anew, without any stores.
KEYS = """async () => !(await indexedDB.databases()).some(({ name }) => name === "tabhelm:e2e") ? [] :
  await new Promise((resolve, reject) => {
  const opening = indexedDB.open("tabhelm:e2e");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const database = opening.result;
    if (!database.objectStoreNames.contains("fencing")) { database.close(); resolve([]); return; }
    const asking = database.transaction("fencing").objectStore("fencing").getAllKeys();
    asking.onsuccess = () => { database.close(); resolve(asking.result); };
  };
})"""


async def test_the_page_client_says_what_it_lacks_there(insecure: ChaosBrowser, site: PythonSite) -> None:
    tab = await insecure.new_tab(f"{site.url}/blank")
    result = await tab.evaluate(JOIN, ["/tabhelm", {}])
    assert result.get("code") == "no-locks" and "is no secure context" in result["message"], result
