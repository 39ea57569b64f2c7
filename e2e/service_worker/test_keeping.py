"""What a service worker keeps, by itself or inside an app's own, under strict policies; what is told when it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e.kit import join, until
from e2e.serving.site import OddSite

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm.testing.driver import DrivenBrowser
from tabhelm_build.demo_app import POLICY

from .pages import FORGETS, controlled, keep, kept_caches

_ANSWER = "async (path) => { const response = await fetch(path); return [response.status, await response.text()]; }"
_ROUTE = """(path) => {
  const timing = performance.getEntriesByName(new URL(path, location.href).href).at(-1);
  return timing.workerFinalRouterSource ?? timing.workerFinalSourceType; // the name that Chromium used first
}"""
ODD_PATH = "/odd(1)+:part*.html"
"""Full of what a pattern of addresses would take for something else."""
TRUSTED = f"{POLICY}; require-trusted-types-for 'script'; trusted-types tabhelm tabhelm-offline"


async def works_offline(browser: ChaosBrowser | DrivenBrowser, url: str) -> None:
    """A page that is opened while the whole browser is cut off joins."""
    await browser.offline(True)
    try:
        tab = await browser.new_tab(url)
        await controlled(tab)
        facts = await join(tab, enginePatienceMs=15_000)
        assert facts["engine"]["from"] == "snapshot", facts
    finally:
        await browser.offline(False)


async def test_by_itself_under_a_strict_policy_with_trusted_types(driven: DrivenBrowser, odd: OddSite) -> None:
    odd.does.headers["service-worker-allowed"] = "/"
    odd.does.policies = dict.fromkeys(["blank", "tabhelm"], TRUSTED)
    tab = await driven.new_tab(f"{odd.url}/blank")
    assert await keep(tab, files=["/blank"], version="1") == {"state": "ready", "code": None, "reason": None}
    await controlled(tab)  # also the page that registered it
    assert await tab.evaluate("() => violations") == []
    assert await tab.evaluate("() => told.map(({ state }) => state)") == ["installing", "ready"]
    status = await tab.evaluate("() => offline.status()")
    assert (status["version"], status["files"]) == ("1", 1)
    if driven.engine not in FORGETS:
        await tab.navigate("about:blank")
    odd.does.asked.clear()
    await works_offline(driven, f"{odd.url}/blank?some=query")
    # What is of the app is compared with the server's in the background, where there is one after all.
    assert [path for path in odd.does.asked if path != "/blank" and not path.endswith("service-worker.js")] == []


async def test_what_it_does_not_keep_goes_past_it(browser: ChaosBrowser, odd: OddSite) -> None:
    odd.does.headers["service-worker-allowed"] = "/"
    odd.does.page("/kept.html")
    odd.does.page("/other.html", "first")
    tab = await browser.new_tab(f"{odd.url}/kept.html")
    odd.does.page(ODD_PATH, "kept")
    await keep(tab, files=["/kept.html", ODD_PATH], version="1")
    await controlled(tab)
    for body in ("one", "two"):
        odd.does.page("/kept.html", body)
        odd.does.page("/other.html", body)
        kept, other = [await tab.evaluate(_ANSWER, path) for path in ("/kept.html", "/other.html")]
        assert body not in kept[1] and body in other[1]
    assert (await tab.evaluate(_ANSWER, "/tabhelm/manifest.json"))[0] == 200
    odd.does.spoilt["manifest.json"] = "missing"
    assert (await tab.evaluate(_ANSWER, "/tabhelm/manifest.json"))[0] == 404, (
        "what is deployed now is asked of the server"
    )
    odd.does.page(ODD_PATH, "changed")
    assert "kept" in (await tab.evaluate(_ANSWER, ODD_PATH))[1]
    # Nor does it wake the service worker: one that is asked all the time is not replaced by the next.
    routes = [await tab.evaluate(_ROUTE, path) for path in ("/kept.html", ODD_PATH, "/other.html")]
    assert routes == ["fetch-event", "fetch-event", "network"]
    # The demo's empty page is none of its files.
    beside = await browser.new_tab(f"{odd.url}/blank")
    odd.does.page("/blank", "changed")
    await beside.reload()
    assert "changed" in await beside.evaluate("() => document.documentElement.textContent")


CLASSIC = """
self.addEventListener("message", ({ data, source }) => data === "hello" && source.postMessage("of the app"));
importScripts("/tabhelm/service-worker.js");
tabhelmOffline({ base: "/tabhelm/", version: "1", files: ["/blank"] });
// An app's own answer to everything else.
self.addEventListener("fetch", (event) => {
  if (event.request.url.endsWith("/hello")) event.respondWith(new Response("hello"));
  else if (navigator.onLine) event.respondWith(fetch(event.request));
});
"""
MODULE = CLASSIC.replace('importScripts("/tabhelm/service-worker.js");', 'import "/tabhelm/service-worker.js";')


@pytest.mark.parametrize("kind", ["classic", "module"])
async def test_inside_an_app_s_own_service_worker(driven: DrivenBrowser, odd: OddSite, kind: str) -> None:
    odd.does.script("/own.js", CLASSIC if kind == "classic" else MODULE)
    tab = await driven.new_tab(f"{odd.url}/blank")
    settled = await keep(tab, worker="/own.js", type=kind)
    assert settled["state"] == "ready", settled
    await controlled(tab)
    assert (await tab.evaluate(_ANSWER, "/hello"))[1] == "hello"
    if driven.engine == "chromium":
        assert await tab.evaluate(_ROUTE, "/hello") != "network"
    if driven.engine not in FORGETS:
        await tab.navigate("about:blank")
    await works_offline(driven, f"{odd.url}/blank")


async def test_an_own_service_worker_that_answers_nothing_may_say_so(browser: ChaosBrowser, odd: OddSite) -> None:
    answers_nothing = CLASSIC.partition("// An app's own answer")[0].replace('"/blank"] }', '"/blank"], alone: true }')
    odd.does.script("/own.js", answers_nothing)
    tab = await browser.new_tab(f"{odd.url}/blank")
    assert (await keep(tab, worker="/own.js"))["state"] == "ready"
    await controlled(tab)
    for path in ("/blank", "/blank2"):
        assert (await tab.evaluate(_ANSWER, path))[0] == 200
    assert [await tab.evaluate(_ROUTE, path) for path in ("/blank", "/blank2")] == ["fetch-event", "network"]


WRONG = {
    "no version": 'tabhelmOffline({ base: "/tabhelm/", files: ["/blank"] });',
    "another origin": 'tabhelmOffline({ base: "/tabhelm/", version: "1", files: ["https://cdn.example/app.js"] });',
    "no folder": 'tabhelmOffline({ base: "/tabhelm" });',
}


@pytest.mark.parametrize("how", WRONG)
async def test_a_service_worker_that_is_told_nonsense_is_not_registered(
    browser: ChaosBrowser, odd: OddSite, how: str
) -> None:
    odd.does.script("/own.js", f'importScripts("/tabhelm/service-worker.js");\n{WRONG[how]}')
    tab = await browser.new_tab(f"{odd.url}/blank")
    settled = await keep(tab, worker="/own.js")
    assert (settled["state"], settled["code"]) == ("failed", "not-registered")
    await join(tab)


async def test_a_scope_that_the_server_does_not_allow_names_the_header(browser: ChaosBrowser, odd: OddSite) -> None:
    tab = await browser.new_tab(f"{odd.url}/blank")
    settled = await keep(tab)
    assert (settled["state"], settled["code"]) == ("failed", "not-registered")
    assert "Service-Worker-Allowed: /" in settled["reason"]
    await join(tab)


@pytest.mark.parametrize(
    ("file", "how", "code", "words"),
    [
        ("snapshot.bin.gz", "missing", "download", "status 404"),
        ("engine.mjs", "page", "content", "text/html"),
        ("python_stdlib.zip", "short", "content", "python_stdlib.zip"),
        ("pyodide.asm.wasm", "changed", "content", "not the file that was built"),
        ("/blank", "missing", "download", "/blank is answered with status 404"),
    ],
)
async def test_what_cannot_be_kept_is_told_harmless_and_tried_again(
    browser: ChaosBrowser, odd: OddSite, file: str, how: str, code: str, words: str
) -> None:
    odd.does.headers["service-worker-allowed"] = "/"
    tab = await browser.new_tab(f"{odd.url}/blank")
    odd.does.spoilt[file] = how
    settled = await keep(tab, files=["/blank"], version="1")
    assert (settled["state"], settled["code"]) == ("failed", code), settled
    assert words in settled["reason"]
    assert await kept_caches(tab) == {}, "nothing half-written stays"
    odd.does.spoilt.clear()
    await join(tab)
    await tab.reload()
    assert (await keep(tab, files=["/blank"], version="1"))["state"] == "ready"


@pytest.mark.parametrize(
    ("file", "how", "words"), [("/blank", "redirect", "is redirected"), ("/app.mjs", "page", "a page of HTML")]
)
async def test_a_login_page_is_not_kept_in_place_of_a_file(
    browser: ChaosBrowser, odd: OddSite, file: str, how: str, words: str
) -> None:
    """A session that ended in mid-deploy: nobody can check what comes, but it is no file of the app's."""
    odd.does.headers["service-worker-allowed"] = "/"
    odd.does.page("/login", "please log in")
    odd.does.script("/app.mjs", "export {};")
    tab = await browser.new_tab(f"{odd.url}/blank")
    odd.does.spoilt[file] = how
    settled = await keep(tab, files=["/blank", "/app.mjs"], version="1")
    assert (settled["state"], settled["code"]) == ("failed", "content"), settled
    assert words in settled["reason"] and await kept_caches(tab) == {}


async def test_what_goes_wrong_elsewhere_on_the_origin_is_not_told_here(
    browser: ChaosBrowser, odd: OddSite, bundle: Path
) -> None:
    """Two apps, each with its own service worker, one in the other's folder."""
    odd.does.headers["service-worker-allowed"] = "/"
    odd.does.folders["inner"] = bundle
    odd.does.page("/inner/page.html")
    inner = await browser.new_tab(f"{odd.url}/inner/page.html")
    settled = await keep(inner, worker="/inner/service-worker.js", scope="/inner/")
    assert settled["state"] == "ready", settled
    outer = await browser.new_tab(f"{odd.url}/blank")
    odd.does.spoilt["/tabhelm/engine.mjs"] = "missing"
    assert (await keep(outer, files=["/blank"], version="1"))["code"] == "download"
    await outer.evaluate("() => offline.remove()")
    assert list(await kept_caches(inner)) == [name for name in await kept_caches(inner) if "/inner/ bundle" in name]
    assert [each["state"] for each in await inner.evaluate("() => told")] == ["installing", "ready"]
    assert (await inner.evaluate("() => offline.status()"))["files"] == 0


async def override_quota(tab: ChaosTab, origin: str, **quota: Any) -> None:
    session = await tab.page.context.new_cdp_session(tab.page)
    await session.send("Storage.overrideQuotaForOrigin", {"origin": origin, **quota})
    await session.detach()


async def test_a_full_storage_is_told_and_harmless(browser: ChaosBrowser, odd: OddSite) -> None:
    odd.does.headers["service-worker-allowed"] = "/"
    tab = await browser.new_tab(f"{odd.url}/blank")
    session = await tab.page.context.new_cdp_session(tab.page)
    await session.send("Storage.overrideQuotaForOrigin", {"origin": odd.url, "quotaSize": 5_000_000})
    settled = await keep(tab, files=["/blank"], version="1")
    assert (settled["state"], settled["code"]) == ("failed", "quota"), settled
    assert await kept_caches(tab) == {}
    await join(tab)
    await session.send("Storage.overrideQuotaForOrigin", {"origin": odd.url})
    await tab.reload()
    assert (await keep(tab, files=["/blank"], version="1"))["state"] == "ready"


async def test_what_the_browser_took_away_is_fetched_again(browser: ChaosBrowser, odd: OddSite) -> None:
    odd.does.headers["service-worker-allowed"] = "/"
    tab = await browser.new_tab(f"{odd.url}/blank")
    await keep(tab, files=["/blank"], version="1")
    await controlled(tab)
    whole = await kept_caches(tab)
    await tab.evaluate("async () => { for (const name of await caches.keys()) await caches.delete(name); }")
    await tab.reload()
    await join(tab)
    (bundle,) = [name for name in await kept_caches(tab) if " bundle " in name]
    assert 5 < (await kept_caches(tab))[bundle] <= whole[bundle]
    await tab.navigate("about:blank")
    odd.does.folders.clear()
    await tab.navigate(f"{odd.url}/blank2")
    await join(tab)


async def test_it_can_be_removed(browser: ChaosBrowser, odd: OddSite) -> None:
    odd.does.headers["service-worker-allowed"] = "/"
    tab = await browser.new_tab(f"{odd.url}/blank")
    await keep(tab, files=["/blank"], version="1")
    await controlled(tab)
    assert len(await kept_caches(tab)) == 2
    await tab.evaluate("() => offline.remove()")
    assert await kept_caches(tab) == {}
    await join(tab)
    assert await kept_caches(tab) == {}, "what the page asks for from now on is not kept again"
    await tab.reload()
    assert await tab.evaluate("() => navigator.serviceWorker.controller") is None


async def test_removed_and_wanted_again_in_the_same_page(browser: ChaosBrowser, odd: OddSite) -> None:
    """The browser then takes the old registration back, and installs nothing."""
    odd.does.headers["service-worker-allowed"] = "/"
    tab = await browser.new_tab(f"{odd.url}/blank")
    await keep(tab, files=["/blank"], version="1")
    await controlled(tab)
    whole = await kept_caches(tab)
    await tab.evaluate("() => offline.remove()")
    assert (await keep(tab, files=["/blank"], version="1"))["state"] == "ready"

    async def all_there() -> bool:
        return await kept_caches(tab) == whole

    await until(all_there, "everything to be kept again", 60)
    await tab.navigate("about:blank")
    await works_offline(browser, f"{odd.url}/blank")


async def test_a_registration_that_fails_leaves_the_one_that_is_there(browser: ChaosBrowser, odd: OddSite) -> None:
    odd.does.headers["service-worker-allowed"] = "/"
    tab = await browser.new_tab(f"{odd.url}/blank")
    await keep(tab, files=["/blank"], version="1")
    odd.does.spoilt["service-worker.js"] = "missing"
    await tab.reload()
    settled = await keep(tab, files=["/blank"], version="2")
    assert settled["state"] == "ready", settled
    assert [each["code"] for each in await tab.evaluate("() => told") if each["type"] == "update"] == ["not-registered"]
