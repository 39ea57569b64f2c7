"""What a person sees and does: dead letters, blocked partitions, figures for a progress bar, limits."""

from __future__ import annotations

import asyncio
import json

from e2e.kit import Site, until

from tabhelm.testing import ChaosBrowser

from .lane import acknowledged, attempt, drained, enqueue, flusher, judge, operations, queueing, stats
from .senders import hold, sending, sends

NO = {"kind": "reject", "reason": "no such case"}


async def test_dead_letters_are_listed_exported_retried_and_removed(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    await enqueue(tab, [{"payload": {**NO, "n": n}, "partition": "p", "id": f"no-{n}"} for n in range(3)])
    await enqueue(tab, operations("fine", 2))
    await drained(tab, done=2)
    letters = (await attempt(tab, "deadLetters"))["value"]
    assert [(letter["id"], letter["payload"]["n"]) for letter in letters] == [("no-0", 0), ("no-1", 1), ("no-2", 2)]
    assert {letter["reason"] for letter in letters} == {"no such case"}
    assert {letter["partition"] for letter in letters} == {"p"} and letters[0]["enqueuedAtMs"] > 1.6e12
    exported = json.loads((await attempt(tab, "exportDead"))["value"])
    assert [each["id"] for each in exported] == ["no-0", "no-1", "no-2"]
    assert exported[0]["payload"] == {**NO, "n": 0} and exported[0]["reason"] == "no such case"
    assert (await attempt(tab, "removeDead", ["no-2", "unknown"]))["value"] == {"count": 1}
    assert (await attempt(tab, "retryDead", ["no-0"]))["value"] == {"count": 1}

    async def again() -> bool:
        at = await stats(tab)
        return at["queued"] == at["inFlight"] == 0

    await until(again, "the retried one to be sent again")
    await tab.until("() => window.lastStats?.dead === 2", what="it to be refused again")
    assert [letter["id"] for letter in (await attempt(tab, "deadLetters"))["value"]] == ["no-0", "no-1"]
    at = await stats(tab)
    assert (at["dead"], at["done"]) == (2, 2)


async def test_dead_letters_of_clones_come_back_as_they_went_and_are_sent_when_retried(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await sending(browser, site)
    shown = await tab.evaluate("""async () => {
      window.refuse = true;
      behave = async ({ payload }) => {
        if (refuse) return { status: "rejected", detail: "not now" };
        window.sent = payload.map.get("k") + payload.big;
      };
      await q.enqueue({ map: new Map([["k", 1n]]), big: 2n }, { id: "clone" });
      await new Promise((dead) => q.addEventListener("stats", ({ detail }) => detail.dead && dead()));
      const [letter] = await q.deadLetters();
      return [letter.id, letter.reason, letter.payload.map.get("k") === 1n, typeof (await q.exportDead())];
    }""")
    assert shown == ["clone", "not now", True, "string"]
    await tab.evaluate("() => { refuse = false; return q.retryDead(['clone']); }")
    await drained(tab, done=1)
    assert await tab.evaluate("() => sent === 3n")


async def test_a_blocked_partition_waits_for_a_person_and_the_others_go_on(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, rejected="block")
    await enqueue(
        tab, [{"payload": NO, "partition": "a", "id": "no"}, {"payload": 1, "partition": "a", "id": "behind"}]
    )
    await enqueue(tab, [{"payload": 2, "partition": "b", "id": "free"}])
    at = await tab.until(
        "() => lastStats?.done === 1 && lastStats.blocked === 1 && lastStats", what="one partition to wait"
    )
    assert (at["queued"], at["dead"]) == (1, 1)
    assert [each["op_id"] for each in await site.effects()] == ["free"]
    await attempt(tab, "removeDead", ["no"])
    await drained(tab, done=2)
    assert [each["op_id"] for each in await site.effects()] == ["free", "behind"]
    assert (await stats(tab))["blocked"] == 0


async def test_figures_for_a_progress_bar(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, batch=20)
    await flusher([tab])
    await site.faults(delay_ms=100)  # so that there is something to see: figures come five times a second
    seen = await tab.evaluate("""async () => {
      const seen = [];
      q.addEventListener("stats", ({ detail }) => seen.push(detail));
      const all = Array.from({ length: 400 }, (_, n) => ({ payload: { n }, partition: `p${n % 4}` }));
      await q.enqueueAll(all);
      for (let last; !(last?.done === 400 && last.inFlight === 0); ) {
        last = await new Promise((told) => q.addEventListener("stats", ({ detail }) => told(detail), { once: true }));
      }
      return seen;
    }""", timeout=60)  # fmt: skip
    assert all(at["queued"] + at["inFlight"] + at["done"] in (0, 400) for at in seen), "each is of one moment"
    done = [at["done"] for at in seen]
    assert done == sorted(done) and len(set(done)) > 3, done
    assert any(at["inFlight"] in (20, 40) for at in seen) and any(at["bytes"] > 400 for at in seen)  # 40: claimed ahead
    assert seen[-1]["bytes"] == 0 and seen[-1]["oldestAgeMs"] is None and seen[-1]["ratePerSecond"] > 1
    assert len(await site.effects()) == 400


async def test_a_tab_of_another_engine_sees_how_fast_the_queue_is_emptied(browser: ChaosBrowser, site: Site) -> None:
    sends = await queueing(browser, site, batch=5)
    await flusher([sends])
    await site.faults(delay_ms=50)
    looks = await queueing(browser, site, flush=False, join_options={"host": "window"})
    await enqueue(sends, operations("a", 300, partitions=3))
    told = "() => window.lastStats?.queued > 0 && lastStats.ratePerSecond > 1"
    await asyncio.gather(*(tab.until(told, what="a rate to be told") for tab in (looks, sends)))


async def test_a_full_queue_takes_no_more_and_half_of_nothing(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, maxOperations=5, flush=False)
    await enqueue(tab, operations("a", 4))
    full = await attempt(tab, "enqueueAll", operations("b", 2))
    assert full["error"]["code"] == "queue-full" and "5" in full["error"]["message"], full
    assert (await stats(tab))["queued"] == 4
    await enqueue(tab, operations("c", 1))
    sender = await queueing(browser, site)
    await drained(sender, done=5)
    await enqueue(tab, operations("d", 5))
    await drained(sender, done=10)
    assert len(await judge(site, await acknowledged(tab))) == 10


async def test_single_requests_in_several_lanes(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, mode="single", lanes=4)
    await flusher([tab])
    await site.faults(delay_ms=100)
    await enqueue(tab, operations("a", 24, partitions=6))
    await drained(tab, done=24, timeout=60)
    await site.faults()
    effects = await judge(site, await acknowledged(tab))
    assert {each["stream"] for each in effects} == {f"a-{n}" for n in range(6)}


async def test_lanes_send_at_once_and_a_slow_partition_stops_nobody(browser: ChaosBrowser, site: Site) -> None:
    tab = await sending(browser, site, lanes=3, batch=1)
    await tab.evaluate("""() => {
      window.most = window.now = 0;
      window.slow = new Promise((go) => (window.go = go));
      behave = async ({ partition }) => {
        most = Math.max(most, ++now);
        await (partition === "slow" ? slow : new Promise((soon) => setTimeout(soon, 50)));
        now--;
      };
    }""")
    wanted = [{"payload": n, "partition": "slow" if n == 0 else f"p{n % 3}"} for n in range(13)]
    await enqueue(tab, wanted)
    await tab.until("() => window.lastStats?.done === 12", what="everything but the slow one to be done")
    assert await tab.evaluate("() => most") >= 2
    await tab.evaluate("() => go()")
    await drained(tab, done=13)
    order: dict[str, list[int]] = {}
    for each in await sends(tab):
        n = each["payload"]
        order.setdefault(wanted[n]["partition"], []).append(n)  # type: ignore[arg-type]
    assert all(numbers == sorted(numbers) for numbers in order.values()), order
    await hold(tab)


async def test_storage_is_asked_to_be_kept(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, flush=False)
    assert await tab.evaluate("() => tab.persist()") in (True, False)
    kept = await tab.evaluate("""async () => {
      navigator.storage.persist = async () => { window.askedFor = true; return true; };
      return [await tab.persist(), window.askedFor];
    }""")
    assert kept == [True, True]
