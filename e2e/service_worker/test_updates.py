"""A new bundle is deployed, and with it a new service worker, while tabs of the old one live and lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from e2e.kit import Leader, Site, join, leader, now, stands_by, until
from e2e.serving.site import OddSite

from tabhelm.testing import ChaosBrowser, SharedWorkerHandle
from tabhelm.testing.driver import DrivenBrowser, DrivenTab

from .pages import controlled, keep, kept_caches

_ENQUEUE = """(name) => tab.queue("mutations", { endpoint: "/api/operations" })
  .enqueue({ kind: "note", name }, { partition: "p" })"""
_EFFECTS = "async () => (await (await fetch('/api/effects')).json()).map(({ op_id }) => op_id)"
_BUILD_INFO = "async () => (await fetch('/tabhelm/build-info.mjs')).text()"
_WAITS = "() => offline.updateWaiting && told.filter(({ waiting }) => waiting).length === 1"


@pytest.fixture
def deploys(odd: OddSite) -> OddSite:
    odd.does.headers["service-worker-allowed"] = "/"
    return odd


def as_site(odd: OddSite) -> Site:
    """Pages are opened and stand as on the demo server; the rest of it is not asked."""
    return Site(cast(Any, odd))


async def standing(driven: DrivenBrowser, odd: OddSite, version: str = "1.0") -> DrivenTab:
    """A page that joined and stands. Marked: a reload would take the mark away."""
    site = as_site(odd)
    tab = await site.open(driven)
    await join(tab, version=version, enginePatienceMs=15_000)
    await tab.evaluate("() => { window.mark = 'this very document'; }")
    await site.stand(tab)
    return tab


async def build_of(tab: DrivenTab) -> str:
    build: str = await tab.evaluate("() => tabhelm.buildId")
    return build


async def leads_on(before: Leader[DrivenTab]) -> None:
    """The very same loop of the very same document still leads."""
    at = await now(before.tab)
    assert at is not None and at["leads"] and at["epoch"] == before.epoch, at
    assert len(at["runs"]) == 1 and at["engine"] == before.engine
    assert await before.tab.evaluate("() => mark") == "this very document"


async def test_an_update_while_a_leader_is_active(driven: DrivenBrowser, deploys: OddSite, second_bundle: Path) -> None:
    """The leader goes on, before and after the new service worker takes over; nothing is lost; nobody is reloaded."""
    nursery = await driven.new_tab(f"{deploys.url}/blank")
    assert (await keep(nursery, files=["/blank"], version="1.0"))["state"] == "ready"
    old = await standing(driven, deploys)
    await controlled(old)
    first = await leader([old])
    sent = [await old.evaluate(_ENQUEUE, "before")]
    await keep(old, files=["/blank"], version="1.0")

    deploys.does.folders["tabhelm"] = second_bundle  # the deploy: what the old tabs are made of is not served any more
    await old.evaluate("() => { void offline.registration.update(); }")
    await old.until(_WAITS, timeout=60, what="the old tab to be told that a newer service worker waits")
    await leads_on(first)
    sent.append(await old.evaluate(_ENQUEUE, "while it waits"))
    beside = await standing(driven, deploys)
    assert await build_of(beside) == await build_of(old), "until it takes over, all tabs get the old release"
    await stands_by(beside)

    await old.evaluate("() => offline.activate()")
    await old.until("() => !offline.updateWaiting && offline.registration.active.state === 'activated'", timeout=60)
    await leads_on(first)
    sent.append(await old.evaluate(_ENQUEUE, "after it took over"))
    assert await old.evaluate("() => tab.lock('case', () => 'held')") == "held"
    new = await standing(driven, deploys, version="2.0")
    assert await build_of(new) != await build_of(old)
    await old.until("() => events.some(({ type }) => type === 'update-available')", what="the old tab to be told")
    assert len([name for name in await kept_caches(new) if " bundle " in name]) == 2

    await old.close()
    await beside.close()
    await nursery.close()  # not before: in WebKit a page that is closed may take the engine of others with it
    successor = await leader([new], above=first.epoch)
    sent.append(await new.evaluate(_ENQUEUE, "by the new release"))

    async def all_applied() -> list[str] | None:
        effects: list[str] = await new.evaluate(_EFFECTS)
        mine = [each for each in effects if each in sent]
        return mine if len(mine) == len(sent) else None

    assert await until(all_applied, "everything to be sent", 60) == sent, "each once, in order"
    assert successor.tab is new
    # The next page that is opened finds nobody of the old release, and its files go.
    last = await driven.new_tab(f"{deploys.url}/blank")

    async def one_left() -> bool:
        return len([name for name in await kept_caches(last) if " bundle " in name]) == 1

    await until(one_left, "the old release's files to be deleted", 60)


_APP = 'document.documentElement.dataset.release = "{0}";'


async def app_of(driven: DrivenBrowser, odd: OddSite) -> tuple[DrivenTab, str]:
    """Open the app, which keeps itself under its own release's name; returns that."""
    tab = await driven.new_tab(f"{odd.url}/app.html")
    release: str = await tab.until("() => document.documentElement.dataset.release")
    await keep(tab, files=["/app.html", "/app.mjs"], version=release)
    return tab, release


@pytest.mark.parametrize("changed", ["page", "script"])
async def test_a_new_release_arrives_though_the_old_one_names_only_itself(
    driven: DrivenBrowser, deploys: OddSite, changed: str
) -> None:
    """Files and version stand in the service worker's address, and the page that names the new one is kept, too."""

    def deploy(release: str) -> None:
        if changed == "page":
            deploys.does.page("/app.html", f'<html data-release="{release}">')
            deploys.does.script("/app.mjs", "")
        else:
            deploys.does.page("/app.html", '<script type="module" src="/app.mjs"></script>')
            deploys.does.script("/app.mjs", _APP.format(release))

    deploy("1")
    nursery = await driven.new_tab(f"{deploys.url}/blank")  # an engine may forget what is kept when nobody is left
    first, release = await app_of(driven, deploys)
    assert release == "1"
    await controlled(first)
    deploy("2")

    async def second_release() -> DrivenTab | None:
        tab, release = await app_of(driven, deploys)
        if release == "2":
            return tab
        await tab.close()
        return None

    second = await until(second_release, "a page of the new release", 60)
    assert await first.evaluate("() => document.documentElement.dataset.release") == "1"
    await second.until("() => offline.updateWaiting", timeout=60, what="the new release to be kept, and to wait")
    deploys.does.spoilt["/app.html"] = "silent"  # there is a network, somehow
    cold, release = await app_of(driven, deploys)
    assert release == "1", "what waits is not in charge yet"
    await cold.close()
    assert await second.evaluate("() => offline.updateWaiting"), "nor was it put out by the older page"
    await second.evaluate("() => offline.activate()")
    await second.until("() => !offline.updateWaiting && offline.registration.active.state === 'activated'", timeout=60)
    assert (await app_of(driven, deploys))[1] == "2"
    await nursery.close()


async def test_an_old_tab_s_next_engine_comes_from_the_old_build(
    browser: ChaosBrowser, deploys: OddSite, second_bundle: Path
) -> None:
    """At one address, where the server has the new build alone: without a service worker that tab would be lost."""
    tab = await standing(browser, deploys)
    await keep(tab, files=["/blank"], version="1.0")
    await controlled(tab)
    first = await leader([tab])
    deploys.does.folders["tabhelm"] = second_bundle
    await tab.evaluate("() => { void offline.registration.update(); }")
    await tab.until(_WAITS, timeout=60, what="it to wait")
    await tab.evaluate("() => offline.activate()")
    await tab.until("() => !offline.updateWaiting && offline.registration.active.state === 'activated'", timeout=60)
    new = await standing(browser, deploys, version="2.0")
    build = await build_of(tab)
    (old_engine,) = [each for each in await browser.shared_workers() if build in each.name]
    await old_engine.evaluate("() => { setTimeout(() => self.close()); }")  # once it has answered
    second = await leader([tab, new], above=first.epoch)
    back = "(before) => tab.engine && tab.engine.id !== before && tab.engine.buildId === tabhelm.buildId"
    await tab.until(back, arg=first.engine, timeout=60, what="the old tab to have another engine of its own build")
    # Under the name that the dying one had, or the next: that one may answer no more, or be gone.
    incarnation = await tab.evaluate("() => tab.engine.incarnation")
    name = build if incarnation == 1 else f"{build}#{incarnation}"

    async def its_engine() -> SharedWorkerHandle | None:
        found = [each for each in await browser.shared_workers() if each.name.endswith(name)]
        return next((each for each in found if each is not old_engine), None)

    engine = await until(its_engine, "the engine that the old tab has now")
    assert build in await engine.evaluate(_BUILD_INFO), "what that engine fetches is of the old build too"
    assert await tab.evaluate("() => mark") == "this very document"
    assert second.epoch > first.epoch


async def test_a_service_worker_that_takes_over_at_once_harms_no_old_tab(
    driven: DrivenBrowser, odd: OddSite, second_bundle: Path
) -> None:
    """Many apps' own service workers do not wait, and claim every page."""
    own = """
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
importScripts("/tabhelm/service-worker.js");
tabhelmOffline({ base: "/tabhelm/", version: "RELEASE", files: ["/blank"] });
"""
    odd.does.script("/own.js", own.replace("RELEASE", "1.0"))
    old = await standing(driven, odd)
    assert (await keep(old, worker="/own.js"))["state"] == "ready"
    await controlled(old)
    first = await leader([old])
    before = await kept_caches(old)
    odd.does.script("/own.js", own.replace("RELEASE", "2.0"))
    odd.does.folders["tabhelm"] = second_bundle
    replaced = """async () => {
      const changed = new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", resolve));
      await offline.registration.update();
      await changed;
    }"""
    await old.evaluate(replaced, timeout=60)
    await leads_on(first)
    assert set(before) < set(await kept_caches(old)), "the old release stays while its tab lives"
    assert await old.evaluate("() => tab.lock('case', () => 'held')") == "held"
    assert await build_of(old) in await old.evaluate(_BUILD_INFO), "what the old tab asks for is of its own build"


async def test_a_newer_tab_makes_old_ones_look_for_the_update(
    browser: ChaosBrowser, deploys: OddSite, second_bundle: Path
) -> None:
    old = await standing(browser, deploys)
    await keep(old, files=["/blank"], version="1.0")
    deploys.does.folders["tabhelm"] = second_bundle
    newer = await as_site(deploys).open(browser)
    await join(newer, version="2.0")
    await old.until(_WAITS, timeout=60, what="the old tab to look for a newer service worker by itself")


async def test_an_update_that_cannot_be_kept_leaves_the_old_one_in_charge(
    browser: ChaosBrowser, deploys: OddSite, second_bundle: Path
) -> None:
    tab = await standing(browser, deploys)
    await keep(tab, files=["/blank"], version="1.0")
    before = await kept_caches(tab)
    deploys.does.folders["tabhelm"] = second_bundle
    deploys.does.spoilt["tabhelm.mjs"] = "page"
    await tab.evaluate("() => { offline.registration.update().catch(() => {}); }")
    told = await tab.until("() => told.find(({ type, code }) => type === 'update' && code)", timeout=60)
    assert (told["code"], told["waiting"]) == ("content", False), told
    assert await tab.evaluate("() => offline.state") == "ready"
    assert await kept_caches(tab) == before
