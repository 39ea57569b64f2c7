"""Leaving a page and coming back, reloading, duplicating."""

from __future__ import annotations

import pytest

from tabhelm.testing import ChaosBrowser, ChaosError

from .page_scripts import HOLD, WAIT


async def test_a_page_comes_back_from_the_cache_as_it_was(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(f"{site}/first")
    await a.evaluate(
        """() => {
          globalThis.mark = "here";
          globalThis.seen = [];
          addEventListener("pageshow", (event) => seen.push(event.persisted));
        }"""
    )
    assert not a.was_restored()
    assert await a.bfcache_round_trip("/second")
    assert a.was_restored()
    assert a.url == f"{site}/first"
    assert await a.evaluate("() => [mark, ...seen]") == ["here", True]
    assert await a.not_restored_reasons() == []
    await a.reload()
    assert not a.was_restored()
    assert await a.evaluate("() => globalThis.mark ?? null") is None


async def test_a_page_that_kept_a_contended_lock_is_not_restored_and_the_reason_is_told(
    browser: ChaosBrowser, site: str
) -> None:
    a = await browser.new_tab(f"{site}/first")
    b = await browser.new_tab(site)
    await a.evaluate(HOLD, "helm")
    await a.show()
    await a.evaluate("() => { globalThis.mark = 'here'; }")
    await a.navigate("/second")
    await b.evaluate(WAIT, "helm")  # a request that comes now evicts the cached holder; one already queued would starve
    await b.until("() => globalThis.got", 10)
    assert not await a.back()
    assert await a.evaluate("() => globalThis.mark ?? null") is None
    assert any("WebLocks" in reason for reason in await a.not_restored_reasons())


async def test_there_may_be_no_page_to_go_back_to(browser: ChaosBrowser) -> None:
    a = await browser.new_tab()
    with pytest.raises(ChaosError, match="no page to go back to"):
        await a.back()


@pytest.mark.parametrize("share_process", [False, True])
async def test_a_duplicate_has_a_copy_of_the_session_storage(
    browser: ChaosBrowser, site: str, share_process: bool
) -> None:
    a = await browser.new_tab(f"{site}/early")
    await a.evaluate("() => { sessionStorage.setItem('who', 'a \"quoted\" name</script>'); }")
    b = await a.duplicate(share_process=share_process)
    assert b.url == a.url
    assert await b.evaluate("() => early") == 'a "quoted" name</script>'  # read by the page's own first script
    assert (await a.pid() == await b.pid()) is share_process
    assert browser.tabs == [a, b]
    # A copy, not a share; and a reload keeps what the copy has by then.
    await b.evaluate("() => { sessionStorage.setItem('who', 'b'); }")
    await b.reload()
    assert await b.evaluate("() => early") == "b"
    assert await a.evaluate("() => sessionStorage.getItem('who')") != "b"
