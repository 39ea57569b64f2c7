"""Tabs that run their own Python beside tabs that share one engine: the same elections, queue and roster."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from e2e.kit import WATCHED, Site, join, leader, leaders, until, write
from e2e.offline_queue.lane import acknowledged, drained, enqueue, flusher, judge, open_queue, operations, queueing

from tabhelm.testing import ChaosBrowser

from .tabs import joined, locks, roster, standing

BOTH = {"window": {"host": "window"}, "shared": {"host": "shared"}}


@pytest.mark.parametrize("other", ["window", "shared"])
async def test_400_operations_from_two_tabs_at_once(browser: ChaosBrowser, site: Site, other: str) -> None:
    tabs = [await queueing(browser, site, join_options=BOTH[host]) for host in ("window", other)]
    halves = [operations(name, 200, partitions=5) for name in ("a", "b")]
    await asyncio.gather(*(enqueue(tab, half, one_by_one=True) for tab, half in zip(tabs, halves, strict=True)))
    await drained(tabs[0], done=400)
    effects = await judge(site, await acknowledged(*tabs))
    assert len(effects) == 400
    for name in ("a", "b"):
        for partition in range(5):
            numbers = [e["payload"]["n"] for e in effects if e["partition"] == f"{name}-{partition}"]
            assert numbers == sorted(numbers) and len(numbers) == 40


async def test_what_was_acknowledged_outlives_the_process_of_its_page(browser: ChaosBrowser, site: Site) -> None:
    alone = await queueing(browser, site, join_options=BOTH["window"], flush=False)
    await enqueue(alone, operations("a", 50, partitions=3))
    acks = await acknowledged(alone)
    await alone.kill_process()
    later = await queueing(browser, site, join_options=BOTH["shared"])
    await drained(later, done=50)
    assert len(await judge(site, acks)) == 50


async def test_a_flusher_is_frozen_in_the_middle_of_its_work(browser: ChaosBrowser, site: Site) -> None:
    first = await queueing(browser, site, join_options=BOTH["window"])
    second = await queueing(browser, site, join_options=BOTH["shared"])
    await roster(first, 2)
    old = await flusher([first, second])
    (other,) = [tab for tab in (first, second) if tab is not old]
    await site.hold_one()
    await enqueue(other, operations("a", 60, partitions=3))
    await site.held()
    await old.freeze()
    await site.release()
    await drained(other, done=60)
    assert len(await judge(site, await acknowledged(other))) == 60
    await old.thaw()


async def test_enqueued_offline_sent_online(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, join_options=BOTH["window"])
    await tab.offline(True)
    await tab.until("() => !navigator.onLine")
    await enqueue(tab, operations("a", 20))
    assert await site.effects() == []
    await tab.offline(False)
    await drained(tab, done=20)
    assert len(await judge(site, await acknowledged(tab))) == 20


async def test_a_queue_is_gone_on_with_after_the_cache(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, join_options=BOTH["window"])
    await enqueue(tab, operations("a", 20))
    acks = await acknowledged(tab)
    assert await tab.bfcache_round_trip("/blank2"), await tab.not_restored_reasons()
    await tab.until("() => tab.hostState.state === 'connected'", what="joined again")
    await enqueue(tab, operations("b", 20))
    await drained(tab, done=40)
    assert len(acks) == 20
    assert len(await judge(site, await acknowledged(tab))) == 40


async def test_both_kinds_share_elections_queue_and_presence(browser: ChaosBrowser, site: Site) -> None:
    hosts = ["window", "shared", "window", "shared"]
    tabs = await standing(browser, site, *hosts)
    for tab in tabs:
        await roster(tab, len(hosts))
    rosters = [await tab.evaluate("() => tab.presence().tabs.map(({ tabId }) => tabId).sort()") for tab in tabs]
    assert len({tuple(each) for each in rosters}) == 1, "all see the same tabs"
    engines = Counter([await tab.evaluate("() => tab.engine.id") for tab in tabs])
    assert sorted(engines.values()) == [1, 1, 2], "one engine in each window tab, one for both others"

    old = await leader(tabs)
    for tab in tabs:
        said = "(id) => stands.job.election.leader()?.tabId === id"
        await tab.until(said, what="everybody to know who leads", arg=old.tab_id)
    assert (await locks(tabs[0]))["held"] == 1
    acks, epochs, left = [], [], list(tabs)
    for tab in tabs:
        await open_queue(tab)
    # One after the other leads, writes, enqueues, and goes, each in another way.
    for end in ("step-down", "close", "kill"):
        now_leading = await leader(left, above=epochs[-1] if epochs else 0)
        epochs.append(now_leading.epoch)
        assert await write(now_leading.tab, f"write-{now_leading.epoch}") == 200
        await enqueue(now_leading.tab, operations(f"from-{now_leading.epoch}", 10))
        acks += (await acknowledged(now_leading.tab))[-10:]
        if end == "step-down":
            await now_leading.tab.evaluate("() => stands.job.election.stop('enough')")
        elif end == "close":
            await now_leading.tab.close()
        else:
            await now_leading.tab.kill_process()
        left = [tab for tab in left if tab is not now_leading.tab]
    last = await leader(left, above=epochs[-1])
    assert await leaders(left) == [last]
    assert await write(last.tab, "write-last") == 200
    await drained(last.tab, done=30)
    writes = [each["op_id"] for each in await site.effects() if each["op_id"].startswith("write-")]
    assert writes == [*(f"write-{epoch}" for epoch in epochs), "write-last"]
    sent = {each["op_id"] for each in await site.effects()}
    assert {each["op_id"] for each in acks} <= sent and len(acks) == 30


async def test_a_shared_engine_hangs_and_a_window_tab_leads(browser: ChaosBrowser, site: Site) -> None:
    # An engine that hangs keeps its locks. Its page moves on at once, a tab with Python of its own needs no engine.
    (shared,) = await standing(browser, site, "shared", join=WATCHED, takeoverAfterMs=10_000)
    old = await leader([shared])
    (own,) = await standing(browser, site, "window", takeoverAfterMs=10_000)
    await roster(own, 2)
    (worker,) = await browser.shared_workers(url_contains="engine.mjs")
    await worker.hang(40)
    new = await leader([shared, own], above=old.epoch, timeout=30)
    assert await write(new.tab, "one") == 200
    assert len(await leaders([shared, own])) == 1


async def test_two_apps_of_one_page(browser: ChaosBrowser, site: Site) -> None:
    tab = await joined(browser, site)
    await site.stand(tab)
    old = await leader([tab])
    second = await tab.evaluate("""async () => {
      window.second = await tabhelm.join({ app: "second", host: "window" });
      return new Promise((leads) => second.lead("job", ({ epoch }) => { leads(epoch); return new Promise(() => {}); }));
    }""")
    assert second == 1
    assert await tab.bfcache_round_trip("/blank2"), await tab.not_restored_reasons()
    await leader([tab], above=old.epoch)
    await tab.until("() => second.hostState.state === 'connected'", what="the second app to have joined again")


async def test_two_joins_of_one_page_share_its_interpreter(browser: ChaosBrowser, site: Site) -> None:
    tab = await joined(browser, site)
    first = await tab.evaluate("() => tab.engine.id")
    again = await tab.evaluate("""async () => {
      window.other = await tabhelm.join({ app: "e2e", host: "window" });
      return [other.engine.id, other.id !== tab.id];
    }""")
    assert again == [first, True]
    await roster(tab, 2)
    await tab.evaluate("() => other.leave('enough')")
    await roster(tab, 1)


async def test_twenty_joins_and_leaves(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    for _ in range(20):
        await join(tab, host="window")
        await site.stand(tab)
        await leader([tab])
        await tab.evaluate("() => tab.leave('again')")

    async def free() -> bool:
        return await locks(tab) == {"held": 0, "pending": 0}

    await until(free, "the lock to be free")
