"""What pages see of the queue: news of it, all-or-nothing enqueues, and a queue that outlives the page's own trips."""

from __future__ import annotations

from typing import Any

from e2e.kit import Site

from tabhelm.testing import ChaosBrowser, ChaosTab

from .lane import acknowledged, attempt, drained, enqueue, flusher, judge, operations, queueing, stats

SECOND = {"base": "/tabhelm2"}


async def told(tab: ChaosTab, condition: str, what: str) -> dict[str, Any]:
    """Wait for figures that come by themselves: the page asks for nothing."""
    found: dict[str, Any] = await tab.until(
        f"() => {{ const at = window.lastStats; return at && ({condition}) && at; }}", what=what
    )
    return found


async def test_every_page_hears_how_the_queue_stands(browser: ChaosBrowser, two_builds: Site) -> None:
    site = two_builds
    leads = await queueing(browser, site)
    await flusher([leads])
    neighbour = await queueing(browser, site, flush=False)
    stranger = await queueing(browser, site, flush=False, join_options=SECOND)  # another build: an engine of its own
    pages = [leads, neighbour, stranger]
    await site.hold_one()
    await enqueue(neighbour, operations("n", 12))
    await site.held()
    for page in pages:
        await told(page, "at.inFlight === 12 && at.queued === 0", "twelve operations in flight")
    await site.release()
    for page in pages:
        at = await told(page, "at.done === 12", "twelve operations done")
        assert at["queued"] == at["inFlight"] == at["dead"] == 0 and at["oldestAgeMs"] is None
    await enqueue(stranger, [{"payload": {"kind": "reject", "reason": "no"}, "partition": "p", "id": "no"}])
    for page in pages:
        await told(page, "at.dead === 1", "one dead letter")
    await attempt(neighbour, "removeDead", ["no"])
    for page in pages:
        await told(page, "at.dead === 0", "no dead letter any more")


async def test_enqueue_all_stores_all_or_nothing(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, flush=False)
    await attempt(tab, "enqueue", {"n": 1}, {"id": "known"})
    items = [{"payload": {"n": n}, "id": f"new-{n}"} for n in range(5)]
    refused = await attempt(tab, "enqueueAll", [*items, {"payload": {"n": 2}, "id": "known"}])
    assert refused["error"]["code"] == "identifier-reused"
    twice = await attempt(tab, "enqueueAll", [*items, {"payload": "another", "id": "new-0"}])
    assert twice["error"]["code"] == "identifier-reused"
    assert (await stats(tab))["queued"] == 1
    again = await attempt(tab, "enqueueAll", [*items, {"payload": {"n": 1}, "id": "known"}])
    assert again["value"] == [*(item["id"] for item in items), "known"]
    assert (await stats(tab))["queued"] == 6


async def test_calls_at_once_keep_their_order(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    await tab.evaluate("""async () => {
      // Nobody waits between the calls: their order alone says what comes first.
      const calls = Array.from({ length: 100 }, (_, n) =>
        n % 3 ? q.enqueue(n, { partition: "p" }) : q.enqueueAll([{ payload: n, partition: "p" }]));
      await Promise.all(calls);
    }""")
    await drained(tab, done=100)
    assert [effect["payload"] for effect in await site.effects()] == list(range(100))


async def test_a_page_out_of_the_cache_goes_on_with_its_queue(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    await enqueue(tab, operations("before", 5))
    await drained(tab, done=5)
    other = await queueing(browser, site, flush=False)
    assert await tab.bfcache_round_trip("/blank2"), await tab.not_restored_reasons()
    await enqueue(tab, operations("after", 5))
    await told(tab, "at.done === 10", "the restored page to hear how the queue stands")
    await enqueue(other, operations("other", 5))
    await drained(other, done=15)
    assert len(await judge(site, await acknowledged(tab, other))) == 15


async def test_a_page_that_leaves_at_once_leaves_its_operations(browser: ChaosBrowser, site: Site) -> None:
    # The only tab goes elsewhere right after the acknowledgement and comes back as a new document.
    tab = await queueing(browser, site)
    await site.faults(delay_ms=1_000)
    await enqueue(tab, operations("left", 20))
    acks = await acknowledged(tab)
    await tab.navigate("/blank2")
    await site.faults()
    later = await queueing(browser, site)
    await drained(later, done=20)
    assert len(await judge(site, acks)) == 20


async def test_bytes_arrive_as_they_were_enqueued(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    payload = {
        "text": 'ä "quoted" \\ \u2028 \0 😀', "": "empty key", "__proto__x": 1, "big": 2**53 - 1, "tiny": 5e-324,
        "list": [None, True, 0.1, -1e300, [], {}], "deep": [[[[["deep"]]]]],
    }  # fmt: skip
    name, partition = 'id "of" /\\ 42', "case/42 ?&"
    assert await attempt(tab, "enqueue", payload, {"partition": partition, "id": name}) == {"value": name}
    await drained(tab, done=1)
    (effect,) = await site.effects()
    assert effect["payload"] == payload
    assert (effect["partition"], effect["op_id"]) == (partition, name)
    refused = await attempt(tab, "enqueue", payload, {"id": "ümläut"})  # it may travel as a header
    assert refused["error"]["name"] == "TypeError" and "ümläut" in refused["error"]["message"]
