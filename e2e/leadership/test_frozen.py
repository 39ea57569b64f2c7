"""Frozen tabs: they hold nothing and wait for nothing, so that the living are not starved."""

from __future__ import annotations

from e2e.kit import DEFAULT_RESOURCE, Site, join, leader, now, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab

LOCK = f"e2e:v1:leader:{DEFAULT_RESOURCE}"
_LOCKS = """async (name) => {
  const { held, pending } = await navigator.locks.query();
  const count = (locks) => locks.filter((lock) => lock.name === name).length;
  return { held: count(held), pending: count(pending) };
}"""


async def locks(tab: ChaosTab) -> dict[str, int]:
    """How many requests for the leader's lock are held and pending, in all engines."""
    found: dict[str, int] = await tab.evaluate(_LOCKS, LOCK)
    return found


async def rank(tab: ChaosTab) -> int | None:
    at = await now(tab)
    return at["status"].get("rank") if at and at["status"]["state"] == "waiting" and at["status"]["standby"] else None


async def test_the_next_in_line_is_frozen_when_the_leader_goes(browser: ChaosBrowser, site: Site) -> None:
    tabs = await site.standing(browser, 3)
    old = await leader(tabs)

    async def next_in_line() -> ChaosTab | None:
        ranks = {tab: await rank(tab) for tab in tabs}
        return next((tab for tab, place in ranks.items() if place == 0), None)

    following = await until(next_in_line, "a tab to stand by")
    (last,) = [tab for tab in tabs if tab not in (old.tab, following)]
    await following.freeze()

    async def last_stands_by() -> bool:
        return await rank(last) == 0 and await locks(last) == {"held": 1, "pending": 1}

    await until(last_stands_by, "the third tab to take the frozen one's place")
    await old.tab.close()
    new = await leader([last], above=old.epoch)
    await following.thaw()

    async def stands_again() -> bool:
        return await rank(following) == 0

    await until(stands_again, "the thawed tab to stand by again")
    assert (await leader([last, following])).tab is last
    await last.close()
    assert (await leader([following], above=new.epoch)).tab is following


async def test_a_frozen_tab_alone_in_its_engine_withdraws_its_request(browser: ChaosBrowser, two_builds: Site) -> None:
    site = two_builds
    first = await site.joined(browser)
    await site.stand(first)
    old = await leader([first])
    frozen = await site.joined(browser, base="/tabhelm2")
    await site.stand(frozen)

    async def queued() -> bool:
        return await rank(frozen) == 0 and (await locks(first))["pending"] == 1

    await until(queued, "the other engine's request in the queue")
    third = await site.joined(browser)
    await site.stand(third)
    await frozen.freeze()

    async def replaced() -> bool:
        return await rank(third) == 0 and await locks(third) == {"held": 1, "pending": 1}

    await until(replaced, "the frozen tab's request to be withdrawn and the living one's to be there")
    await first.close()
    new = await leader([third], above=old.epoch)
    assert await write(third, "one") == 200
    await frozen.thaw()
    await third.close()
    await leader([frozen], above=new.epoch)


async def test_a_frozen_tab_joins_nothing_and_takes_part_again_after_the_thaw(
    browser: ChaosBrowser, site: Site
) -> None:
    (living,) = await site.standing(browser)
    first = await leader([living])
    sleeper = await site.open(browser)
    before = await join(sleeper)
    await site.stand(sleeper)
    for _ in range(3):
        await sleeper.freeze()
        await sleeper.thaw()
    await living.close()
    await leader([sleeper], above=first.epoch)
    after = await sleeper.evaluate("() => [tab.connectionId, tab.generation]")
    assert after == [before["connectionId"], before["generation"]], "a thaw is no new join"


async def test_the_only_tab_is_frozen_and_thawed(browser: ChaosBrowser, site: Site) -> None:
    (tab,) = await site.standing(browser)
    first = await leader([tab])
    await tab.freeze()
    watcher = await site.open(browser)

    async def free() -> bool:
        return await locks(watcher) == {"held": 0, "pending": 0}

    await until(free, "its lock to be free, and nothing to wait for it")
    await tab.thaw()
    await leader([tab], above=first.epoch)
    assert await write(tab, "one") == 200
