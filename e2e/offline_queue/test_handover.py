"""The leader is lost with a batch on its way: the next one sends it again, and the late original is refused."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from e2e.kit import Site, until

from tabhelm.testing import ChaosBrowser, ChaosTab

from .lane import acknowledged, attempt, drained, enqueue, flusher, judge, operations, queueing

HANG = 6.0  # seconds; long enough to be found out (the kit's limit is 2 s) and to hand the work over meanwhile


async def lose(leads: ChaosTab, how: str) -> None:
    match how:
        case "closed":
            await leads.close()
        case "crashed":
            await leads.crash()
        case "frozen":
            await leads.freeze()
        case "hung":
            await leads.hang(HANG)
        case "gone elsewhere":
            await leads.navigate("/blank2")


async def late_batch_refused(site: Site) -> None:
    """Let the held batch go on, and wait until the receiver has refused it."""
    await site.release()

    async def refused() -> bool:
        return 409 in [request["outcome"] for request in await site.requests()]

    await until(refused, "the lost leader's late batch to be refused")


@pytest.mark.parametrize("how", ["closed", "crashed", "frozen", "hung", "gone elsewhere"])
async def test_the_flushing_tab_is_lost_in_mid_flush(browser: ChaosBrowser, site: Site, how: str) -> None:
    # The first tab's process holds the engine; the second is the only one to stand at first, leads, and is lost.
    host = await queueing(browser, site, flush=False)
    leads = await queueing(browser, site, batch=10)
    assert await flusher([leads, host]) is leads
    rest = await queueing(browser, site, batch=10)
    await site.hold_one()
    await enqueue(host, operations("a", 60, partitions=4))
    await site.held()
    before = (await site.requests())[-1]["epoch"]
    await lose(leads, how)
    assert await flusher([rest]) is rest
    await drained(rest, done=60)
    assert (await site.effects())[-1]["epoch"] > before
    await late_batch_refused(site)
    assert len(await judge(site, await acknowledged(host))) == 60


async def test_the_flushing_tab_is_killed_together_with_the_engine(browser: ChaosBrowser, site: Site) -> None:
    leads = await queueing(browser, site, batch=10)
    rest = await queueing(browser, site, batch=10)
    assert await flusher([leads, rest]) is leads
    await site.hold_one()
    await enqueue(rest, operations("a", 60, partitions=4))
    await site.held()
    await leads.kill_process()
    assert await flusher([rest]) is rest
    await drained(rest, done=60)
    await late_batch_refused(site)
    assert len(await judge(site, await acknowledged(rest))) == 60


@pytest.mark.parametrize("how", ["frozen", "hung"])
async def test_a_tab_that_comes_back_flushes_again(browser: ChaosBrowser, site: Site, how: str) -> None:
    leads = await queueing(browser, site, batch=10)
    other = await queueing(browser, site, batch=10)
    assert await flusher([leads, other]) is leads
    await lose(leads, how)
    await enqueue(other, operations("meanwhile", 20))
    await drained(other, done=20)
    assert await flusher([other, leads]) is other
    if how == "frozen":
        await leads.thaw()
    await enqueue(leads, operations("back", 5))
    await other.close()
    await enqueue(leads, operations("alone", 5))
    await drained(leads, done=30)
    # The acknowledgements of the closed tab are gone with it. Partitions of two calls have no order between them.
    effects = await judge(site, await acknowledged(leads))
    assert Counter(e["payload"]["from"] for e in effects) == {"meanwhile": 20, "back": 5, "alone": 5}


async def test_a_batch_that_was_given_up_arrives_late(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, sendTimeoutMs=500)
    await flusher([tab])
    await site.hold_one()
    await enqueue(tab, operations("late", 5))
    await site.held()
    await drained(tab, done=5)  # by another request of the same leader
    await late_batch_refused(site)
    assert len(await judge(site, await acknowledged(tab))) == 5


async def test_storage_is_wiped_while_a_batch_is_on_its_way(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, batch=5)
    await flusher([tab])
    await site.hold_one()
    await enqueue(tab, operations("before", 10))  # five are on their way, five are not, and go with the storage
    await site.held()
    await browser.storage_clear(site.url)
    await tab.until("() => events.some(({ type }) => type === 'storage-changed')", what="the event of the wipe")
    await site.release()
    await enqueue(tab, operations("after", 10))

    async def applied() -> bool:
        return [e["payload"]["from"] for e in await site.effects()].count("after") == 10

    await until(applied, "what was enqueued after the wipe to be applied")
    effects = await site.effects()
    sent = [(e["payload"]["from"], e["payload"]["n"]) for e in effects]
    assert sorted(sent) == sorted(set(sent)), "something was applied twice"
    assert {n for name, n in sent if name == "before"} <= set(range(5))
    assert len({e["domain"] for e in effects}) == 1
    epochs = [e["epoch"] for e in effects]
    assert epochs == sorted(epochs)


async def test_one_id_from_two_engines_at_once(browser: ChaosBrowser, two_builds: Site) -> None:
    tabs = [
        await queueing(browser, two_builds),
        await queueing(browser, two_builds, flush=False, join_options={"base": "/tabhelm2"}),
    ]
    same = await asyncio.gather(*(attempt(tab, "enqueue", {"n": 1}, {"id": "same"}) for tab in tabs))
    assert same == [{"value": "same"}] * 2
    told = await asyncio.gather(
        *(attempt(tab, "enqueue", {"n": n}, {"id": "differs"}) for n, tab in enumerate(tabs, start=1))
    )
    refused = [each["error"]["code"] for each in told if "error" in each]
    assert refused == ["identifier-reused"] and {"value": "differs"} in told
    await drained(tabs[0], done=2)
    assert len(await two_builds.effects()) == 2
