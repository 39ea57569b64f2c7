"""Python in a dedicated worker: nobody tells it of its page's lifecycle, so its leadership ends by force or with it."""

from __future__ import annotations

import time

import pytest
from e2e.kit import Site, leader, write

from tabhelm.testing import ChaosBrowser

from .kit import PythonWorker, locks
from .site import PythonSite

TAKEOVER_MS = 10_000


async def test_a_worker_that_froze_with_its_page_is_taken_over_and_fenced(
    browser: ChaosBrowser, site: PythonSite
) -> None:
    worker = await PythonWorker.joined(browser, site)
    who = await worker("who")
    assert (who["host"], who["lifecycle"], who["online"]) == ("worker", "unknown", True)
    await worker("stand", "job", {"takeoverAfterMs": TAKEOVER_MS})
    first = await worker.leads()
    assert await worker("write", "first") == 200
    await worker("keep_headers", "before")
    bundles = Site(site)  # type: ignore[arg-type]
    tab = await bundles.joined(browser)
    await bundles.stand(tab, "job", takeoverAfterMs=TAKEOVER_MS)
    began = time.monotonic()
    await worker.tab.freeze()
    await tab.show()
    assert "e2e:v1:leader:job" in (await locks(tab))["held"], "the worker could not let go"
    await leader([tab], "job", above=first["epoch"], timeout=60.0)
    print(f"frozen worker: taken over after {time.monotonic() - began:.1f} s (asked for: {TAKEOVER_MS / 1000:g} s)")
    await worker.tab.thaw()
    assert await worker("write", "late", "before") == 409
    assert await worker("lost") is not None
    assert "late" not in [effect["op_id"] for effect in await site.effects()]


@pytest.mark.parametrize("told", [False, True], ids=["untold", "ended-on-pagehide"])
async def test_a_worker_whose_page_goes_into_the_cache(browser: ChaosBrowser, site: PythonSite, told: bool) -> None:
    worker = await PythonWorker.joined(browser, site)
    takeover_ms = 60_000 if told else TAKEOVER_MS
    await worker("stand", "job", {"takeoverAfterMs": takeover_ms})
    first = await worker.leads()
    bundles = Site(site)  # type: ignore[arg-type]
    tab = await bundles.joined(browser)
    await bundles.stand(tab, "job", takeoverAfterMs=takeover_ms)
    if told:
        await worker.tab.evaluate("() => addEventListener('pagehide', () => worker.terminate())")
    await worker.tab.show()
    began = time.monotonic()
    await worker.tab.navigate("/blank2")
    await tab.show()
    second = await leader([tab], "job", above=first["epoch"], timeout=60.0)
    took = time.monotonic() - began
    print(f"in the cache, {'told' if told else 'untold'}: another tab leads after {took:.1f} s")
    assert await write(tab, f"mine-{told}") == 200
    restored = await worker.tab.back()
    at_once = took < takeover_ms / 2000
    if told:
        assert at_once, "a worker that ended keeps nothing"
    elif restored:  # else the browser put the page out of the cache, and its locks with it
        assert not at_once, "a cached worker keeps its locks"
    assert await leader([tab], "job", above=second.epoch - 1)
