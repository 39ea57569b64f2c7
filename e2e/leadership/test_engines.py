"""Engines that die, hang, and share one resource: the SharedWorkers in which Python runs."""

from __future__ import annotations

import asyncio

import pytest
from e2e.kit import RECEIVER, STALL_MS, WATCHED, Site, hand_over, join, leader, leaders, now, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab, SharedWorkerHandle

SECOND = "/tabhelm2"


async def engine(browser: ChaosBrowser) -> SharedWorkerHandle:
    """The one engine that runs."""
    (worker,) = await browser.shared_workers(url_contains="engine.mjs")
    return worker


async def test_the_engine_s_process_is_killed(browser: ChaosBrowser, site: Site) -> None:
    host, *others = await site.standing(browser, 3)
    old = await leader([host, *others])
    before = [await tab.evaluate("() => [tab.id, tab.generation, tab.engine.id]") for tab in others]
    worker = await engine(browser)
    queues = []
    for number, tab in enumerate(others):
        await tab.evaluate(f"() => {{ window.queue = tab.queue('mutations', {{ endpoint: '{RECEIVER}' }}); }}")
        # Both ways of being too late: asked before the engine died, and after.
        queues.append(tab.evaluate(_ENQUEUE, [f"early-{number}", 20]))
    enqueued = [asyncio.ensure_future(work) for work in queues]
    await host.kill_process()  # it joined first, so its renderer holds the engine
    enqueued += [
        asyncio.ensure_future(tab.evaluate(_ENQUEUE, [f"late-{number}", 20])) for number, tab in enumerate(others)
    ]

    new = await leader(others, above=old.epoch)
    assert new.engine != old.engine
    assert not await worker.alive()
    assert await write(new.tab, "next") == 200
    for tab in others:
        await tab.until("() => tab.hostState.state === 'connected' && tab.engine", 30, "both to be in the new engine")
    after = [await tab.evaluate("() => [tab.id, tab.generation, tab.engine.id]") for tab in others]
    assert [(one[0], one[1] + 1) for one in before] == [(one[0], one[1]) for one in after]
    assert {one[2] for one in after} == {new.engine}

    ids = [each for answers in await asyncio.gather(*enqueued) for each in answers]
    assert len(ids) == 80

    async def all_applied() -> bool:
        return len(await site.effects()) == len(ids) + 1

    await until(all_applied, f"{len(ids)} operations to be applied", 30)
    assert sorted(effect["op_id"] for effect in await site.effects()) == sorted([*ids, "next"]), "each exactly once"


_ENQUEUE = """async ([name, count]) => {
  const all = Array.from({ length: count }, (_, n) => queue.enqueue({ name: `${name}-${n}` }, { id: `${name}-${n}` }));
  return await Promise.all(all);
}"""


async def test_joining_while_the_page_that_made_the_engine_hangs(browser: ChaosBrowser, site: Site) -> None:
    host, member = [await site.joined(browser, **given) for given in (WATCHED, {})]
    for tab in (host, member):
        await site.stand(tab)
    old = await leader([host, member])
    newcomer = await site.open(browser)
    await host.hang(45)
    facts = await join(newcomer)
    assert host.silent, "it was to join while the other page hangs"
    assert facts["engine"]["incarnation"] == 2
    await site.stand(newcomer)
    both = [member, newcomer]
    new = await leader(both, above=old.epoch if old.tab is host else old.epoch - 1)
    assert await write(new.tab, "one") == 200
    ids = [(await member.evaluate("() => tab.engine.id")), facts["engine"]["id"]]
    assert ids[0] != ids[1]

    # One leader over two engines, whichever is asked to go.
    await new.tab.evaluate("() => stands.job.election.stop('enough')")
    (rest,) = [tab for tab in both if tab is not new.tab]
    last = await leader([rest], above=new.epoch)
    assert await write(last.tab, "two") == 200
    assert await leaders(both) == [last]
    assert host.silent


async def test_two_builds_share_one_resource(browser: ChaosBrowser, two_builds: Site) -> None:
    site = two_builds
    first = await site.joined(browser)
    second = await site.joined(browser, base=SECOND)
    assert await first.evaluate("() => tabhelm.buildId") != await second.evaluate("() => tabhelm.buildId")
    assert len(await browser.shared_workers(url_contains="engine.mjs")) == 2
    for tab in (first, second):
        await site.stand(tab)
    old = await leader([first, second])
    (rest,) = [tab for tab in (first, second) if tab is not old.tab]
    for tab in (first, second):
        roster = await tab.until(
            "() => tab.presence().tabs.length === 2 && tab.presence().tabs", what="both to see both"
        )
        assert {info["liveness"] for info in roster} == {"alive"}
    await hand_over(old, [rest])
    new = await leader([rest], above=old.epoch)
    assert await write(new.tab, "one") == 200


async def _leader_in_one_engine_waiter_in_another(browser: ChaosBrowser, site: Site) -> tuple[ChaosTab, ChaosTab, int]:
    first = await site.joined(browser)
    await site.stand(first)
    old = await leader([first])
    second = await site.joined(browser, base=SECOND)
    await site.stand(second)

    async def queued() -> bool:
        at = await now(second)
        return at is not None and at["status"] == {"state": "waiting", "standby": True, "rank": 0}

    await until(queued, "the other engine's tab to stand by")
    return first, second, old.epoch


@pytest.mark.alone  # the engine has ten milliseconds to read the goodbye: not to be had beside other browsers
async def test_the_leader_navigates_away_while_another_engine_waits(browser: ChaosBrowser, two_builds: Site) -> None:
    site = two_builds
    first, second, epoch = await _leader_in_one_engine_waiter_in_another(browser, site)
    # The first engine's only page enters the cache, and the engine is suspended with it.
    await first.evaluate("() => addEventListener('pagehide', () => localStorage.setItem('left', clock()))")
    await first.navigate("/blank2")
    new = await leader([second], above=epoch)
    left = float(await second.evaluate("() => localStorage.getItem('left')"))
    assert new.at - left < 1_000
    assert await write(second, "one") == 200
    if await first.back():
        await first.until("() => tab.hostState.state === 'connected' && tab.engine", what="joined again")
    else:
        # A machine so busy that the engine was suspended before it read the page's goodbye: the browser then evicts the
        # page, because somebody waits for what its engine holds, and the lock is free that way.
        assert await first.not_restored_reasons() == ["PageSupportNeeded:WebLocksContention"]
        await join(first)
        await site.stand(first)
    assert (await leader([first, second])).tab is second


async def test_the_leader_crashes_and_a_tab_of_another_engine_leads(browser: ChaosBrowser, two_builds: Site) -> None:
    first, second, epoch = await _leader_in_one_engine_waiter_in_another(browser, two_builds)
    await first.kill_process()
    await leader([second], above=epoch)
    assert await write(second, "one") == 200


async def test_leader_and_next_in_line_die_with_their_engine(browser: ChaosBrowser, two_builds: Site) -> None:
    site = two_builds
    first = await site.joined(browser)
    await site.stand(first)
    old = await leader([first])
    following = await first.duplicate(share_process=True)
    await join(following)
    await site.stand(following)
    last = await site.joined(browser, base=SECOND)
    await site.stand(last)
    await following.show()  # a visible tab ranks first

    async def watches() -> bool:
        at = await now(last)
        return at is not None and at["status"] == {"state": "waiting", "standby": False, "rank": 1}

    await until(watches, "the other engine's tab to leave the queue to a better one")
    assert {await tab.pid() for tab in (first, following)} == {await first.pid()}
    assert await last.pid() != await first.pid()
    # Nobody is left in the queue, and nobody says goodbye.
    await first.kill_process()
    await leader([last], above=old.epoch, timeout=12.0)
    assert await write(last, "one") == 200
    gone = "() => tab.presence().tabs.length === 1 || null"
    await last.until(gone, 12.0, "the dead to leave the roster")


async def test_an_engine_that_every_page_left_ends_itself(browser: ChaosBrowser, site: Site) -> None:
    (tab,) = await site.standing(browser, 1, join=WATCHED)
    (worker,) = await browser.shared_workers()
    await worker.hang(2.5 * STALL_MS / 1000)
    await tab.until("() => tab.engine?.incarnation === 2", what="the page to be with another engine", timeout=30)

    async def alone() -> bool:
        return len(await browser.shared_workers()) == 1

    await until(alone, "the abandoned engine to end", 30)
    await leader([tab], timeout=30)


async def test_a_loop_that_rejects_with_something_that_cannot_be_shown_leads_no_more(
    browser: ChaosBrowser, site: Site
) -> None:
    first, second = [await site.joined(browser) for _ in range(2)]
    await first.evaluate("""() => {
      const nasty = new Proxy(new Error("x"), { get() { throw new Error("no"); } });
      window.odd = tab.lead("job", async () => { throw nasty; });
    }""")
    await first.until("() => odd.status.state === 'backing-off' || odd.status.state === 'waiting'", what="it to end")
    await site.stand(second)
    await leader([second])
