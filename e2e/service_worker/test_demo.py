"""The demo has opted in: it says so, and offers a newer version without taking it from anybody."""

from __future__ import annotations

from e2e.serving.site import OddSite

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm_build.demo_app import service_worker_script

_READY = "() => window.demo?.offline?.state === 'ready'"


async def demo(browser: ChaosBrowser, odd: OddSite) -> ChaosTab:
    tab = await browser.new_tab(f"{odd.url}/?test")
    await tab.until(_READY, timeout=60, what="the demo to be kept")
    await tab.evaluate("() => { window.mark = true; }")
    return tab


async def test_a_newer_version_is_offered_and_taken_by_the_tab_that_wants_it(
    browser: ChaosBrowser, odd: OddSite
) -> None:
    ann, bob = await demo(browser, odd), await demo(browser, odd)
    assert await ann.evaluate("() => document.querySelector('#kept').innerText") == "Opens offline, too."
    odd.does.script("/service-worker.js", service_worker_script().replace('"version": "', '"version": "newer-'))
    await ann.evaluate("() => { void demo.offline.registration.update(); }")
    for tab in (ann, bob):
        await tab.until("() => document.querySelector('#update').checkVisibility()", timeout=60, what="the offer")
    await ann.show()
    await ann.page.get_by_role("button", name="Use the newer version here").click()
    await ann.until(f"() => !window.mark && ({_READY})()", timeout=60, what="the tab to come back with the new version")
    assert (await ann.evaluate("() => demo.offline.status()"))["version"].startswith("newer-")
    await bob.until("() => !document.querySelector('#update').checkVisibility()", what="the offer to go")
    assert await bob.evaluate("() => window.mark"), "nobody else was reloaded"


async def test_without_a_service_worker_the_demo_works_and_says_why(browser: ChaosBrowser, odd: OddSite) -> None:
    odd.does.spoilt["/service-worker.js"] = "missing"
    tab = await browser.new_tab(f"{odd.url}/?test")
    await tab.until("() => window.demo?.offline?.state === 'failed'", timeout=60, what="the demo to say so")
    words = await tab.evaluate("() => document.querySelector('#kept').innerText")
    assert words.startswith("Does not open offline: the service worker could not be registered"), words
    assert await tab.evaluate("() => demo.tab.connectionId")
