"""The leader is lost with a batch on its way: the next one sends it again, and the late original is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from e2e.kit import WATCHED, Site, join, until

from tabhelm.testing import ChaosBrowser, ChaosTab

from .lane import (
    acknowledged,
    attempt,
    barrier_answered,
    drained,
    enqueue,
    flusher,
    judge,
    open_queue,
    operations,
    queueing,
)

HANG = 15.0  # seconds; long enough to be found out and to hand the work over meanwhile


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
        case "reloaded":
            await leads.reload()


def joins(how: str) -> dict[str, Any]:
    """What the tab that is lost joins with, that it may be found out. What others miss for a moment is no loss."""
    return WATCHED if how == "hung" else {}


WAYS = ["closed", "crashed", "frozen", "hung", "gone elsewhere", "reloaded"]


async def late_batch_refused(site: Site) -> None:
    """Let the held batch go on, and wait until the receiver has refused it."""
    await site.release()

    async def refused() -> bool:
        return 409 in [request["outcome"] for request in await site.requests()]

    await until(refused, "the lost leader's late batch to be refused")


@pytest.mark.parametrize("how", WAYS)
async def test_the_flushing_tab_is_lost_in_mid_flush(browser: ChaosBrowser, site: Site, how: str) -> None:
    # The first tab's process holds the engine; the second is the only one to stand at first, leads, and is lost.
    host = await queueing(browser, site, flush=False)
    leads = await queueing(browser, site, batch=10, join_options=joins(how))
    assert await flusher([leads, host]) is leads
    rest = await queueing(browser, site, batch=10)
    await barrier_answered(site)
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
    assert await flusher([leads]) is leads
    rest = await queueing(browser, site, batch=10)
    await barrier_answered(site)
    await site.hold_one()
    await enqueue(rest, operations("a", 60, partitions=4))
    await site.held()
    await leads.kill_process()
    assert await flusher([rest]) is rest
    await drained(rest, done=60)
    await late_batch_refused(site)
    assert len(await judge(site, await acknowledged(rest))) == 60


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with another tab"])
async def test_the_flushing_tab_is_reloaded_with_operations_waiting(
    browser: ChaosBrowser, site: Site, others: int
) -> None:
    # Its new document opens the queue and is elected: two reasons to look at what the old one left.
    leads = await queueing(browser, site, batch=10)
    await flusher([leads])
    rest = [await queueing(browser, site, batch=10) for _ in range(others)]
    await barrier_answered(site)
    await site.hold_one()
    await enqueue(leads, operations("a", 60, partitions=4))
    acks = await acknowledged(leads)
    await site.held()
    await leads.reload()
    await join(leads)
    await open_queue(leads, batch=10)
    await drained(leads, done=60)
    await late_batch_refused(site)
    for tab in (leads, *rest):
        await enqueue(tab, operations(f"b{tab.number}", 5))
    await drained(leads, done=65 + 5 * others)
    assert len(await judge(site, [*acks, *await acknowledged(leads, *rest)])) == 65 + 5 * others


@pytest.mark.parametrize("host", ["shared", "window"])
async def test_stepping_down_breaks_the_request_off_and_counts_no_attempt(
    browser: ChaosBrowser, site: Site, host: str
) -> None:
    tab = await queueing(browser, site, join_options={"host": host})
    await flusher([tab])
    failed = await failures(browser, tab, host)
    await barrier_answered(site)
    await site.hold_one()
    await enqueue(tab, [{"payload": {"kind": "reject", "reason": "no"}, "partition": "p", "id": "op"}])
    await site.held()
    before = (await site.requests())[-1]
    await tab.evaluate("() => __orchestration.forceElection('offline-queue:mutations')")
    await until(failed, "the request to be broken off")
    # It is still held, so the next leader had to ask by itself; and only that attempt counts.
    dead = await tab.until("async () => (await q.deadLetters())[0]", what="the operation to be judged")
    assert (dead["id"], dead["attempts"], dead["reason"]) == ("op", 0, "no")
    assert (await site.requests())[-1]["epoch"] > before["epoch"]
    await late_batch_refused(site)


async def failures(browser: ChaosBrowser, tab: ChaosTab, host: str) -> Callable[[], Awaitable[bool]]:
    """Whether a request of the sending engine was broken off by itself since now."""
    if host == "window":
        seen: list[str | None] = []
        tab.page.on("requestfailed", lambda request: seen.append(request.failure))

        async def in_page() -> bool:
            return "net::ERR_ABORTED" in seen

        return in_page
    (engine,) = await browser.shared_workers(url_contains="engine.mjs")
    await engine.evaluate("""() => {
      const { fetch } = globalThis;
      globalThis.brokenOff = 0;
      globalThis.fetch = (url, options) => {
        const answer = fetch(url, options);
        answer.catch(({ name }) => (brokenOff += name === "AbortError"));
        return answer;
      };
    }""")

    async def in_engine() -> bool:
        return bool(await engine.evaluate("() => brokenOff"))

    return in_engine


@pytest.mark.parametrize("how", ["frozen", "hung"])
async def test_a_tab_that_comes_back_flushes_again(browser: ChaosBrowser, site: Site, how: str) -> None:
    leads = await queueing(browser, site, batch=10, join_options=joins(how))
    assert await flusher([leads]) is leads
    other = await queueing(browser, site, batch=10)
    await lose(leads, how)
    await enqueue(other, operations("meanwhile", 20))
    await drained(other, done=20)
    await flusher([other])
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
    await barrier_answered(site)
    await site.hold_one()
    await enqueue(tab, operations("late", 5))
    await site.held()
    await drained(tab, done=5)  # by another request of the same leader
    await late_batch_refused(site)
    assert len(await judge(site, await acknowledged(tab))) == 5


async def test_storage_is_wiped_while_a_batch_is_on_its_way(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, batch=5)
    await flusher([tab])
    await barrier_answered(site)
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
