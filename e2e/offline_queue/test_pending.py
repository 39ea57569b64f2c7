"""An enqueue that is under way when its engine dies, or its page goes into the cache, settles once, and stores once."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.kit import Site, uncaught

from tabhelm.testing import ChaosBrowser, ChaosTab

from .lane import drained, queueing
from .senders import sending

_PENDING = """() => {
  window.settled = [];
  const calls = Array.from({ length: 20 }, (_, n) => q.enqueue({ n }, { partition: "p" }));
  calls.forEach((call, n) => call.then((id) => settled.push([n, id]), (error) => settled.push([n, error.code])));
  // The page's promises, so that nothing can settle one of them twice unseen.
  window.all = Promise.allSettled(calls).then((each) => each.map(({ status }) => status));
}"""


async def once(tab: ChaosTab, site: Site) -> None:
    assert await tab.evaluate("() => all", timeout=60) == ["fulfilled"] * 20
    settled: list[Any] = await tab.evaluate("() => settled")
    assert [n for n, _ in settled] == list(range(20)) and len({each for _, each in settled}) == 20
    await drained(tab, done=20)
    assert await uncaught(tab) == []


@pytest.mark.parametrize("payloads", ["json", "clone"])
async def test_its_engine_dies(browser: ChaosBrowser, site: Site, payloads: str) -> None:
    host = await queueing(browser, site, flush=False)
    tab = await (queueing(browser, site) if payloads == "json" else sending(browser, site))
    await tab.evaluate(_PENDING)
    await host.kill_process()
    await once(tab, site)
    assert [each["payload"]["n"] for each in await site.effects()] == list(range(20))


async def test_what_the_app_enqueues_when_an_engine_is_there_again_comes_behind_what_was_under_way(
    browser: ChaosBrowser, site: Site
) -> None:
    host = await queueing(browser, site, flush=False)
    tab = await queueing(browser, site)
    await host.pid()
    (engine,) = await browser.shared_workers()
    await engine.hang(60)  # it answers nothing any more
    await tab.evaluate("""() => {
      tab.addEventListener("host", ({ detail }) => {
        if (detail.state === "connected") window.more ??= q.enqueue({ n: 20 }, { partition: "p" });
      });
    }""")
    await tab.evaluate(_PENDING)
    await host.kill_process()
    assert await tab.evaluate("() => all", timeout=60) == ["fulfilled"] * 20
    await tab.until("() => window.more", what="the listener to be told")
    await drained(tab, done=21)
    assert [each["payload"]["n"] for each in await site.effects()] == list(range(21))


@pytest.mark.parametrize("host", ["shared", "window"])
@pytest.mark.parametrize("payloads", ["json", "clone"])
async def test_its_page_goes_into_the_cache_and_comes_back(
    browser: ChaosBrowser, site: Site, host: str, payloads: str
) -> None:
    given = {"join_options": {"host": host}}
    tab = await (queueing(browser, site, **given) if payloads == "json" else sending(browser, site, **given))
    # The page leaves in the very task in which it calls: nothing has been answered by then.
    await tab.evaluate(f"() => {{ ({_PENDING})(); location.href = '/blank2'; }}")
    await tab.page.wait_for_url("**/blank2")
    assert await tab.back(), await tab.not_restored_reasons()
    await once(tab, site)
    assert [each["payload"]["n"] for each in await site.effects()] == list(range(20))


async def test_its_page_leaves_for_good(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, flush=False)
    told = await tab.evaluate("""async () => {
      const call = q.enqueue(1);
      await tab.leave("logout");
      return call.then(() => "stored", ({ code }) => code);
    }""")
    assert told == "not-joined"
