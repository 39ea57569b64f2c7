"""A deploy takes the old build's files away while its tabs live."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tabhelm.testing import ChaosBrowser, ChaosTab

from .pages import FLUSHED, try_join, works
from .site import OddSite, serve

ENQUEUE = """async () => {
  const began = performance.now();
  const settled = (id, { code = null, message = "" } = {}) => ({ id, code, message, ms: performance.now() - began });
  const enqueued = tab.queue("mutations").enqueue({ kind: "note" }, { partition: "p" });
  return enqueued.then((id) => settled(id), (error) => settled(null, error));
}"""
STAND = """() => {
  window.election = tab.lead("job", ({ signal }) => new Promise((end) => signal.addEventListener("abort", end)), {});
  tab.queue("mutations", { endpoint: "/api/operations" });
}"""


@pytest.fixture
def two(bundle: Path, second_bundle: Path) -> Iterator[OddSite]:
    """The old build at ``/v1``, the new one at ``/v2``."""
    with serve(None, v1=bundle, v2=second_bundle) as site:
        yield site


async def joined(browser: ChaosBrowser, site: OddSite, base: str) -> ChaosTab:
    tab = await browser.new_tab(f"{site.url}/blank")
    result = await try_join(tab, base)
    assert result.get("host") == "shared", result
    await tab.evaluate(STAND)
    return tab


async def test_old_tabs_go_on_and_are_told_when_their_engine_dies(browser: ChaosBrowser, two: OddSite) -> None:
    old = await joined(browser, two, "/v1")
    await old.until("() => election.status.state === 'leading'", what="the old tab to lead")
    beside = await browser.new_tab(f"{two.url}/blank")
    await beside.evaluate("async () => { window.loaded = await import('/v1/tabhelm.mjs'); }")

    files = two.does.folders.pop("v1")  # the deploy
    accepted = [await works(old)]
    assert (await try_join(beside, "/v1")).get("host") == "shared", "a page that has loaded the client finds the engine"
    new = await joined(browser, two, "/v2")
    await new.until("() => tab.presence().tabs.length === 3", what="old and new tabs to know each other")

    (engine,) = await browser.shared_workers(url_contains="/v1/")
    await engine.evaluate("() => { setTimeout(() => self.close()); }")  # once it has answered
    await old.until("() => tab.hostState.state === 'lost'", what="the old tab to be told")
    told = await old.evaluate("() => ({ ...tab.hostState, status: election.status, leader: election.leader() })")
    print(f"\nthe old tab: {told['reason']}")
    assert "/v1/explain.mjs" in told["reason"] and "/v1/engine.mjs" in told["reason"]
    assert told["status"]["state"] == "idle" and told["leader"] is None
    lost = await old.evaluate(ENQUEUE, timeout=60)
    print(f"an enqueue of the old tab: {lost['code']} after {lost['ms']:.0f} ms: {lost['message']}")
    assert lost["code"] == "engine-lost"

    await new.until("() => election.status.state === 'leading'", what="the new build to lead")
    accepted.append(await works(new))
    effects = await new.evaluate("async () => (await (await fetch('/api/effects')).json()).map(({ op_id }) => op_id)")
    assert sorted(effects) == sorted(accepted), "nothing lost, nothing doubled"

    # A rollback, or files that are kept for a while: the old tab comes back by itself.
    two.does.folders["v1"] = files
    await old.until("() => tab.hostState.state === 'connected'", timeout=60, what="the old tab to come back")
    kept = await old.evaluate(ENQUEUE)
    assert kept["code"] is None
    await new.until(FLUSHED, what="the new build to send what the old tab enqueues")


async def test_files_that_the_browser_has_kept_outlive_the_deploy(browser: ChaosBrowser, two: OddSite) -> None:
    """A folder for each build, cached without end: the old tabs' next engine comes out of the browser's cache."""
    two.does.headers["cache-control"] = "public, max-age=31536000, immutable"
    old = await joined(browser, two, "/v1")
    await old.until("() => election.status.state === 'leading'", what="the old tab to lead")
    del two.does.folders["v1"]
    (engine,) = await browser.shared_workers(url_contains="/v1/")
    before = await old.evaluate("() => tab.engine.id")
    await engine.evaluate("() => { setTimeout(() => self.close()); }")  # once it has answered
    back = "(before) => tab.engine && tab.engine.id !== before && election.status.state === 'leading'"
    await old.until(back, arg=before, what="the old tab to have another engine")
    await works(old)


async def test_another_build_at_the_same_address_is_named(browser: ChaosBrowser, two: OddSite) -> None:
    """The page has loaded the client of one build, and another is served when it joins: its files do not fit."""
    tab = await browser.new_tab(f"{two.url}/blank")
    await tab.evaluate("async () => { await import('/v1/tabhelm.mjs'); }")
    of_base = "async (base) => (await import(`${base}/tabhelm.mjs`)).buildId"
    old, new = [await tab.evaluate(of_base, base) for base in ("/v1", "/v2")]
    two.does.folders["v1"] = two.does.folders["v2"]
    two.does.spoilt["engine.mjs"] = "missing"
    result = await try_join(tab, "/v1")
    assert result.get("code") == "no-engine", result
    assert (
        f"build {new} is served" in result["message"] and f"this page is of build {old}: reload it" in result["message"]
    )
