"""Whatever happens to tabs, engines and storage: what was acknowledged is applied exactly once, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from e2e.kit import Site, until
from playwright.async_api import ConsoleMessage

from tabhelm.testing import ChaosBrowser
from tabhelm.testing.pytest_plugin import LaunchBrowser

from .lane import acknowledged, attempt, drained, enqueue, flusher, judge, operations, queueing, stats

_STORM = """() => {
  const noise = () => crypto.getRandomValues(new Uint32Array(200)).join(" ");
  (async () => {
    for (let each = 0; ; each++) {
      const ids = Array.from({ length: 100 }, (_, n) => `storm-${each}-${n}`);
      await q.enqueueAll(ids.map((id) => ({ payload: noise(), partition: "p", id })));
      console.log(`acknowledged ${each}`);
    }
  })();
}"""


async def test_400_operations_from_two_tabs_at_once(browser: ChaosBrowser, site: Site) -> None:
    tabs = [await queueing(browser, site) for _ in range(2)]
    halves = [operations(name, 200, partitions=5) for name in ("a", "b")]
    await asyncio.gather(*(enqueue(tab, half, one_by_one=True) for tab, half in zip(tabs, halves, strict=True)))
    await drained(tabs[0], done=400)
    effects = await judge(site, await acknowledged(*tabs))
    assert len(effects) == 400
    for name in ("a", "b"):
        for partition in range(5):
            numbers = [e["payload"]["n"] for e in effects if e["partition"] == f"{name}-{partition}"]
            assert numbers == sorted(numbers) and len(numbers) == 40


async def test_acknowledged_means_durable(browser: ChaosBrowser, site: Site) -> None:
    # Nobody flushes yet. The only tab's process, engine and all, is killed right after the acknowledgement.
    alone = await queueing(browser, site, flush=False)
    await enqueue(alone, operations("a", 50, partitions=3))
    acks = await acknowledged(alone)
    await alone.kill_process()
    later = await queueing(browser, site)
    await drained(later, done=50)
    assert len(await judge(site, acks)) == 50


async def test_acknowledged_operations_outlive_the_whole_browser(
    launch_browser: LaunchBrowser, site: Site, tmp_path: Path
) -> None:
    profile = tmp_path / "profile"
    profile.mkdir()
    first = await launch_browser(profile=profile)
    alone = await queueing(first, site)
    await enqueue(alone, operations("sent", 5))
    await drained(alone, done=5)
    before = (await site.effects())[-1]
    await site.hold_one()
    # Killed the moment that the news of an acknowledgement gets out, with a batch on its way.
    killed = asyncio.Event()

    def on_console(message: ConsoleMessage) -> None:
        if message.text == "acknowledged 4":
            first.process.end()
            killed.set()

    alone.page.on("console", on_console)
    await alone.evaluate(_STORM)
    await asyncio.wait_for(killed.wait(), 30)
    acks = [f"storm-{each}-{n}" for each in range(5) for n in range(100)]
    second = await launch_browser(profile=profile)
    later = await queueing(second, site)
    await drained(later)
    effects = await judge(site, [{"op_id": op_id, "partition": "p", "tab": 1} for op_id in acks])
    assert effects[-1]["domain"] == before["domain"] and effects[-1]["epoch"] > before["epoch"]
    await site.release()


async def test_a_follower_enqueues_and_closes(browser: ChaosBrowser, site: Site) -> None:
    leads = await queueing(browser, site)
    await flusher([leads])
    follower = await queueing(browser, site, flush=False)
    await site.faults(delay_ms=300)
    await enqueue(follower, operations("f", 30))
    acks = await acknowledged(follower)
    await follower.close()
    await drained(leads, done=30)
    assert len(await judge(site, acks)) == 30


async def test_a_follower_enqueues_offline_and_closes_and_the_leader_is_online_later(
    browser: ChaosBrowser, site: Site
) -> None:
    leads = await queueing(browser, site)
    await flusher([leads])
    follower = await queueing(browser, site, flush=False)
    await browser.offline(True)
    for tab in (leads, follower):
        await tab.until("() => tab.presence().self.online === false", what="both tabs to find out")
    await leads.until("() => !tab.presence().leaders['offline-queue:mutations']", what="the offline tab to step down")
    before = len(await site.requests())
    await enqueue(follower, operations("f", 30, partitions=3))
    acks = await acknowledged(follower)
    await follower.close()
    assert (await stats(leads))["queued"] == 30 and len(await site.requests()) == before
    await browser.offline(False)
    await drained(leads, done=30)
    assert len(await judge(site, acks)) == 30


async def test_an_engine_dies_with_enqueues_pending(browser: ChaosBrowser, site: Site) -> None:
    host = await queueing(browser, site, flush=False)
    member = await queueing(browser, site)
    # 300 calls, one after the other, while the engine is killed in their midst.
    wanted = operations("m", 300, partitions=3)
    storm = asyncio.ensure_future(enqueue(member, wanted, one_by_one=True))
    await member.until("() => acks.length > 40", what="the storm to be under way")
    await host.kill_process()
    await storm
    await drained(member, done=300)
    acks = await acknowledged(member)
    assert len(acks) == 300
    assert len(await judge(site, acks)) == 300


async def test_storage_is_wiped_in_mid_run(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    await enqueue(tab, operations("before", 20))
    await drained(tab, done=20)
    first = (await site.effects())[-1]
    await browser.storage_clear(site.url)
    await enqueue(tab, operations("after", 20))
    await drained(tab)

    async def all_applied() -> bool:
        return len(await site.effects()) == 40

    await until(all_applied, "the operations enqueued after the wipe to be applied")
    last = (await judge(site, await acknowledged(tab)))[-1]
    assert last["domain"] == first["domain"] and last["epoch"] > first["epoch"]


async def test_storage_is_wiped_while_the_leader_is_frozen(browser: ChaosBrowser, site: Site) -> None:
    leads = await queueing(browser, site)
    await enqueue(leads, operations("before", 5))
    await drained(leads, done=5)
    first = (await site.effects())[-1]
    other = await queueing(browser, site)
    await leads.freeze()
    await browser.storage_clear(site.url)
    await enqueue(other, operations("after", 20))
    await drained(other)
    await leads.thaw()
    await enqueue(leads, operations("thawed", 5))
    await drained(other)

    async def all_applied() -> bool:
        return len(await site.effects()) == 30

    await until(all_applied, "all operations to be applied")
    last = (await judge(site, await acknowledged(leads, other)))[-1]
    assert last["domain"] == first["domain"] and last["epoch"] > first["epoch"]


async def test_two_builds_share_the_queue(browser: ChaosBrowser, two_builds: Site) -> None:
    old = await queueing(browser, two_builds)
    new = await queueing(browser, two_builds, join_options={"base": "/tabhelm2"})
    await asyncio.gather(
        enqueue(old, operations("old", 60, partitions=3), one_by_one=True),
        enqueue(new, operations("new", 60, partitions=3), one_by_one=True),
    )
    await drained(new, done=120)
    acks = await acknowledged(old)
    await old.close()
    await enqueue(new, operations("last", 5))
    await drained(new, done=125)
    assert len(await judge(two_builds, [*acks, *await acknowledged(new)])) == 125


async def test_the_same_id_again_does_nothing_and_another_payload_is_refused(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    for _ in range(2):
        assert await attempt(tab, "enqueue", {"n": 1}, {"id": "op-1"}) == {"value": "op-1"}
    refused = await attempt(tab, "enqueue", {"n": 2}, {"id": "op-1"})
    assert refused["error"]["code"] == "identifier-reused" and "op-1" in refused["error"]["message"]
    await drained(tab, done=1)
    assert await attempt(tab, "enqueue", {"n": 1}, {"id": "op-1"}) == {"value": "op-1"}  # known by its receipt
    assert (await stats(tab))["done"] == 1
    assert len(await site.effects()) == 1
