"""A database of our name that something else made: an unreleased build, or the app itself."""

from __future__ import annotations

from e2e.kit import Site
from e2e.offline_queue.lane import acknowledged, attempt, drained, enqueue, judge, operations, queueing

from tabhelm.testing import ChaosBrowser

from .acts import ask_to_delete, done, make_foreign


async def test_a_database_of_something_else_is_named_with_the_way_out(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    await make_foreign(tab)
    await tab.close()
    tab = await queueing(browser, site)
    refused = (await attempt(tab, "enqueue", {"kind": "never"}))["error"]
    assert refused["code"] == "database", refused
    assert "'tabhelm:e2e' lacks some of the stores" in refused["message"] and "delete it" in refused["message"]
    await ask_to_delete(tab)
    await done(tab)
    await enqueue(tab, operations("after", 5))
    await drained(tab, done=5)
    await judge(site, await acknowledged(tab))
