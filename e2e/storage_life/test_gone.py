"""The database disappears under tabs that live: cleared with the site's data, deleted by a script of the app itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from e2e.kit import Site, leader, uncaught, until
from e2e.offline_queue.lane import (
    acknowledged,
    attempt,
    drained,
    enqueue,
    judge,
    open_queue,
    operations,
    queueing,
    stats,
)

from tabhelm.testing.driver import DrivenBrowser

from .acts import ask_to_delete, both_hosts, changes, done, ended, stored, told


async def _wipe(driven: DrivenBrowser, site: Site) -> None:
    await driven.wipe(site.url)


async def _delete(driven: DrivenBrowser, site: Site) -> None:
    page = await site.open(driven)
    await ask_to_delete(page)
    await done(page)
    await page.close()


WAYS: dict[str, Callable[[DrivenBrowser, Site], Awaitable[None]]] = {"wiped": _wipe, "deleted": _delete}


@pytest.mark.parametrize("way", WAYS)
async def test_a_leader_without_a_queue_notices_by_itself_and_goes_on_above(
    driven: DrivenBrowser, site: Site, way: str
) -> None:
    """It writes to no database: only its engine can tell that its epoch is gone."""
    tabs = await both_hosts(driven, site)
    for tab in tabs:
        await site.stand(tab)
    old = await leader(tabs)
    before = await stored(old.tab)
    await WAYS[way](driven, site)
    await told(old.tab, "wiped")
    assert await ended(old.tab) in ("storage-wiped", "versionchange")
    new = await leader(tabs, above=old.epoch)

    async def written_back() -> bool:
        record = (await stored(new.tab)).get("epoch:e2e:job")
        return record is not None and record["epoch"] >= new.epoch

    await until(written_back, "the epochs to be in the new database")
    after = await stored(new.tab)
    assert after["domain"]["domain"] == before["domain"]["domain"], "a living engine remembers"
    assert after["database"]["id"] != before["database"]["id"]
    for tab in tabs:
        assert await uncaught(tab) == []


async def test_all_that_is_acknowledged_after_it_is_sent_and_what_came_before_is_not_sent_again(
    driven: DrivenBrowser, site: Site
) -> None:
    tabs = await both_hosts(driven, site)
    for number, tab in enumerate(tabs):
        await open_queue(tab)
        await enqueue(tab, operations(f"before-{number}", 10, partitions=2))
    await drained(tabs[0], done=20)
    await driven.wipe(site.url)
    for number, tab in enumerate(tabs):
        await enqueue(tab, operations(f"after-{number}", 10, partitions=2))
    await site.applied(40)
    effects = await judge(site, await acknowledged(*tabs))
    assert len({effect["domain"] for effect in effects}) == 1
    assert effects[-1]["epoch"] > effects[0]["epoch"]


async def test_what_waited_and_is_gone_is_told_by_every_tab(driven: DrivenBrowser, site: Site) -> None:
    """Nobody flushes: thirty operations are acknowledged, and then the user clears the site's data."""
    tabs = await both_hosts(driven, site)
    for tab in tabs:
        await open_queue(tab, flush=False)
    await enqueue(tabs[0], operations("lost", 30))
    for tab in tabs:
        assert (await stats(tab))["queued"] == 30
    await driven.wipe(site.url)
    for tab in tabs:
        await told(tab, "wiped")
        lost = await tab.until(
            "() => events.find(({ type }) => type === 'queue-lost')", 15, "the page to be told of the lost operations"
        )
        assert lost["operations"] == 30 and "mutations" in lost["queue"]
        assert (await stats(tab))["queued"] == 0
    assert "value" in await attempt(tabs[1], "enqueue", {"kind": "note"}), "it goes on"
    seen = await changes(tabs[1])
    assert "blocked" not in seen[seen.index("wiped") :]


async def test_a_page_opened_afterwards_has_locks_of_its_own_and_finds_an_engine_that_sees_them(
    driven: DrivenBrowser, site: Site
) -> None:
    """Chromium gives it another lock manager than what lives on, and their SharedWorker by name."""
    old = await queueing(driven, site)
    await enqueue(old, operations("before", 5))
    await drained(old, done=5)
    await driven.wipe(site.url)
    await told(old, "wiped")
    new = await queueing(driven, site, join_options={"enginePatienceMs": 15_000})
    for name, tab in (("old", old), ("new", new)):
        await enqueue(tab, operations(name, 5))
    await site.applied(15)
    await judge(site, await acknowledged(old, new))
    # The old engine may welcome it before its lock is seen to be free, twice at the most: then it is left for good.
    await new.until("() => tab.hostState.state === 'connected'", what="the new page to be connected")
    assert len(await new.evaluate("() => hosts")) <= 4
    for tab in (old, new):
        assert await uncaught(tab) == []
