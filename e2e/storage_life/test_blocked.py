"""Somebody keeps an old connection open, and a deletion waits for it: nobody can open the database meanwhile."""

from __future__ import annotations

from e2e.kit import Site
from e2e.offline_queue.lane import acknowledged, attempt, drained, enqueue, judge, operations, queueing

from tabhelm.testing.driver import DrivenBrowser

from .acts import ask_to_delete, changes, get_out_of_the_way, stand_in_the_way, told


async def test_it_is_told_and_all_goes_on_by_itself_when_the_way_is_free(driven: DrivenBrowser, site: Site) -> None:
    tab = await queueing(driven, site)
    await enqueue(tab, operations("before", 5))
    await drained(tab, done=5)
    other = await site.open(driven)
    await stand_in_the_way(other)
    await ask_to_delete(other)
    await told(tab, "versionchange")
    refused = (await attempt(tab, "enqueue", {"kind": "never"}))["error"]
    assert refused["code"] == "database-blocked", refused
    assert "'tabhelm:e2e'" in refused["message"] and "close the other tabs of this site" in refused["message"]
    assert (await changes(tab)).count("blocked") == 1
    await get_out_of_the_way(other)
    await told(tab, "wiped", timeout=30)
    await enqueue(tab, operations("after", 5))
    await site.applied(10)
    effects = await judge(site, await acknowledged(tab))
    assert effects[-1]["domain"] == effects[0]["domain"] and effects[-1]["epoch"] > effects[0]["epoch"]


async def test_a_call_that_waits_is_answered_when_the_way_is_free(driven: DrivenBrowser, site: Site) -> None:
    tab = await queueing(driven, site, flush=False)
    await enqueue(tab, operations("before", 1))
    other = await site.open(driven)
    await stand_in_the_way(other)
    await ask_to_delete(other)
    await told(tab, "versionchange")
    await tab.evaluate("() => { window.waiting = q.enqueue({ kind: 'waits' }).then(() => 'stored', String); }")
    await get_out_of_the_way(other)
    assert await tab.evaluate("() => waiting", timeout=30) == "stored"
