"""Tabs of the bundle (one shared engine) and pages that run their own Python, at once: one app, the same leaders."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from e2e.kit import Site, join, leader, now, until

from tabhelm.testing import ChaosBrowser, ChaosTab, wait_for

from .kit import PythonPage, locks
from .site import PythonSite

ENQUEUE = """async ([prefix, count]) => {
  const queue = tab.queue("mutations", { endpoint: "/api/operations" });
  const payloads = Array.from({ length: count }, (_, number) => ({ kind: "note", name: `${prefix}-${number}` }));
  for (const payload of payloads) await queue.enqueue(payload, { partition: prefix });
}"""
STATS = """() => tab.queue("mutations").stats()"""


def bundle_site(site: PythonSite) -> Site:
    return Site(site)  # type: ignore[arg-type]  # only its url is asked for


async def sees(tab: ChaosTab, tab_ids: set[str]) -> None:
    async def look() -> bool:
        found: list[str] = await tab.evaluate("() => tab.presence().tabs.map(({ tabId }) => tabId)")
        return set(found) == tab_ids

    await wait_for(look, 15.0, f"{tab} to see {tab_ids}")


async def test_they_meet_and_hand_leadership_over_both_ways(browser: ChaosBrowser, site: PythonSite) -> None:
    bundles = bundle_site(site)
    old = await bundles.joined(browser)
    await bundles.stand(old, "job")
    first = await leader([old], "job")
    page = await PythonPage.joined(browser, site, capabilities=["python"])
    mine = (await page("who"))["id"]
    await sees(old, {first.tab_id, mine})
    await page.sees(lambda seen: set(seen["tabs"]) == {first.tab_id, mine}, "both tabs")
    assert (await page("presence"))["leaders"] == {"job": first.tab_id}
    await page("stand", "job", {})
    assert not (await page("now", "job"))["leads"]
    await old.close()
    second = await page.leads("job", above=first.epoch)
    assert await page("write", "from-python") == 200
    new = await bundles.joined(browser)
    await bundles.stand(new, "job")
    await sees(new, {mine, await new.evaluate("() => tab.id")})
    assert await new.evaluate("() => tab.presence().leaders.job.tabId") == mine
    assert (await now(new, "job"))["leads"] is False  # type: ignore[index]
    await page("leave")
    third = await leader([new], "job", above=second["epoch"])
    await sees(new, {third.tab_id})
    assert await page.uncaught() == []


async def test_a_frozen_and_a_cached_python_page_hand_over_to_the_bundle(
    browser: ChaosBrowser, site: PythonSite
) -> None:
    bundles = bundle_site(site)
    page = await PythonPage.joined(browser, site)
    await page("stand", "job", {})
    first = await page.leads("job")
    tab = await bundles.joined(browser)
    await bundles.stand(tab, "job")
    await tab.show()
    await page.tab.freeze()
    second = await leader([tab], "job", above=first["epoch"])
    await page.tab.thaw()
    await page.tab.show()
    await page.stands_by("job")  # thawed, it asks anew; before that the bundle's tab would be its own successor
    await tab.evaluate("() => stands.job.election.stepDown('enough')")
    third = await page.leads("job", above=second.epoch)
    await page.tab.navigate("/blank2")
    await leader([tab], "job", above=third["epoch"])
    assert await page.tab.back(), await page.tab.not_restored_reasons()
    await sees(tab, {second.tab_id, (await page("who"))["id"]})


async def test_they_share_a_queue_exactly_once(browser: ChaosBrowser, site: PythonSite) -> None:
    bundles = bundle_site(site)
    tab = await bundles.joined(browser)
    page = await PythonPage.joined(browser, site)
    await page("queue", "mutations", {"endpoint": "/api/operations"})
    await asyncio.gather(tab.evaluate(ENQUEUE, ["bundle", 100]), page("enqueue", "mutations", "python", 100))

    async def emptied() -> bool:
        seen: dict[str, Any] = await tab.evaluate(STATS)
        return (seen["queued"], seen["inFlight"], seen["dead"]) == (0, 0, 0)

    await wait_for(emptied, 60.0, "the queue to be empty")
    assert (await page("stats", "mutations"))["done"] == 200
    effects = await site.effects()
    assert set(Counter(effect["op_id"] for effect in effects).values()) == {1}
    for prefix in ("bundle", "python"):
        names = [effect["payload"]["name"] for effect in effects if effect["partition"] == prefix]
        assert names == [f"{prefix}-{number}" for number in range(100)]


async def test_one_page_may_do_both(browser: ChaosBrowser, site: PythonSite) -> None:
    page = await PythonPage.joined(browser, site)
    facts = await join(page.tab)
    mine = await page("who")
    assert facts["id"] != mine["id"]
    await page("stand", "job", {})
    first = await page.leads("job")
    await bundle_site(site).stand(page.tab, "job")
    await page("leave")
    await leader([page.tab], "job", above=first["epoch"])
    await page.tab.evaluate("() => tab.leave()")

    async def empty() -> bool | None:
        left = await locks(page.tab)
        return not [name for name in left["held"] if ":engine:" not in name] or None

    await until(empty, "nothing but the shared engine's own lock to be left")
