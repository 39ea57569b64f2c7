"""A plain page with its own Pyodide: installed by micropip, offline, under the strict policy; then it does the job."""

from __future__ import annotations

from tabhelm.testing import ChaosBrowser, wait_for

from .kit import PythonPage, locks
from .site import PythonSite


async def test_a_page_installs_the_wheel_and_does_the_job(browser: ChaosBrowser, site: PythonSite) -> None:
    tab = await browser.new_tab(f"{site.url}/blank")
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    page = await PythonPage.boot(tab, site)
    facts = await page("join", {"capabilities": ["offline.flush.v1"], "version": "104.2"})
    print(f"plain page: {page.ms}, join {facts['ms']:.0f} ms")
    assert facts["host"] == "window" and facts["generation"] == 1
    await page("stand", "job")
    leading = await page.leads()
    assert await page("write", "first") == 200
    assert [effect["epoch"] for effect in await site.effects()] == [leading["epoch"]]
    await page("queue", "mutations", {})
    await page("flush_batches", "mutations")
    await page("enqueue", "mutations", "a", 60)

    async def all_done() -> bool:
        return bool((await page("stats", "mutations"))["done"] == 60)

    await wait_for(all_done, 30.0, "60 operations to be committed")
    names = [effect["payload"]["name"] for effect in await site.effects() if effect["partition"] == "a"]
    assert names == [f"a-{number}" for number in range(60)]
    presence = await page("presence")
    assert presence["leaders"] == {"job": facts["id"], "offline-queue:mutations": facts["id"]}
    assert presence["tabs"] == {facts["id"]: ["active", "alive", ["offline.flush.v1"]]}
    await page("leave")
    assert await locks(tab) == {"held": [], "pending": []}
    assert {url for url in asked if not url.startswith(site.url)} == set()
    assert await page.uncaught() == []


async def test_nothing_is_left_behind_after_leaving(browser: ChaosBrowser, site: PythonSite) -> None:
    page = await PythonPage.open(browser, site)
    await page("trace_proxies")
    await page("join", {})
    assert await page("proxies") > 5, "while it has joined, the count sees it"
    await page("leave")
    counts = await page("a_whole_life", 6, timeout=120.0)
    print(f"proxies after each life: {counts}")
    assert counts == [0] * 6
    assert await locks(page.tab) == {"held": [], "pending": []}
    assert await page.uncaught() == []


async def test_what_is_missing_is_said(browser: ChaosBrowser, site: PythonSite) -> None:
    page = await PythonPage.open(browser, site)
    said = await page("join_errors")
    assert said["locks"].startswith("NoAuthority: nothing can decide here who leads; web-locks: ")
    assert "this context has no Web Locks" in said["locks"] and "indexeddb-lease: " in said["locks"]
    assert await page.uncaught() == []
