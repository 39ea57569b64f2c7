"""A tab on the window host that goes: closed, navigated, crashed, frozen, cached. Nothing is kept from the living."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.everywhere.measures import LISTEN
from e2e.kit import Site, hand_over, join, leader, leaders, now, stands_by, uncaught, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab

from .tabs import joined, locks, roster, standing

_NAMES = """async () => {
  const { held, pending } = await navigator.locks.query();
  return { held: held.map(({ name }) => name), pending: pending.map(({ name }) => name) };
}"""
_LAST_WORD = """() => {{
  const channel = new BroadcastChannel("went");
  {of}.addEventListener("{at}", () => channel.postMessage(clock()));
}}"""
_SELF = "() => ({ id: tab.id, connectionId: tab.connectionId, generation: tab.generation, engine: tab.engine })"
OTHERS = ["window", "shared"]


async def _leader_and_standby(
    browser: ChaosBrowser, site: Site, other: str = "window", **policy: Any
) -> tuple[ChaosTab, ChaosTab, int]:
    (first,) = await standing(browser, site, "window", **policy)
    old = await leader([first])
    (second,) = await standing(browser, site, other, **policy)
    await stands_by(second)
    assert await first.pid() != await second.pid()
    return first, second, old.epoch


async def one_held_and_one_pending(tab: ChaosTab) -> None:
    """A tab that stands by has told so before its request is in the queue."""

    async def so() -> bool:
        return await locks(tab) == {"held": 1, "pending": 1}

    await until(so, "one request of the resource's lock held, one pending")


@pytest.mark.parametrize("other", OTHERS)
async def test_closed(browser: ChaosBrowser, site: Site, other: str) -> None:
    first, second, epoch = await _leader_and_standby(browser, site, other)
    assert await write(first, "one") == 200
    await first.close()
    new = await leader([second], above=epoch)
    assert await write(second, "two") == 200
    await roster(second, 1)
    assert [each["epoch"] for each in await site.effects()] == [epoch, new.epoch]


@pytest.mark.parametrize("other", OTHERS)
async def test_crashed(browser: ChaosBrowser, site: Site, other: str) -> None:
    first, second, epoch = await _leader_and_standby(browser, site, other)
    await first.kill_process()
    await leader([second], above=epoch, timeout=12)
    assert await write(second, "two") == 200
    await roster(second, 1, timeout=12)


@pytest.mark.parametrize("other", OTHERS)
async def test_navigated_away_and_back(browser: ChaosBrowser, site: Site, other: str) -> None:
    first, second, epoch = await _leader_and_standby(browser, site, other)
    await roster(first, 2)
    before = await first.evaluate(_SELF)
    await second.evaluate(LISTEN)
    await first.evaluate(_LAST_WORD.format(of="window", at="pagehide"))
    await second.show()
    await first.navigate("/blank2")
    meanwhile = await leader([second], above=epoch)
    left = float(await second.until("() => went"))
    assert meanwhile.at - left < 10_000, "nobody waited for it to be taken over, which costs a minute"
    await roster(second, 1)
    assert await write(second, "meanwhile") == 200
    await second.evaluate("() => tab.update({ capabilities: ['news.v1'] })")  # a word on the channel evicts who listens

    assert await first.back(), await first.not_restored_reasons()
    await first.until("() => tab.hostState.state === 'connected' && tab.engine", what="joined again")
    after = await first.evaluate(_SELF)
    assert (after["id"], after["generation"]) == (before["id"], before["generation"] + 1)
    assert after["connectionId"] != before["connectionId"]
    assert after["engine"] == before["engine"], "the interpreter was booted once and kept"
    run = await first.evaluate("() => { const { ctx, ...rest } = stands.job.runs[0]; return rest; }")
    assert run["reason"] == "pagehide" and run["abortedAt"] <= meanwhile.at, "its loop had ended before the next began"
    await stands_by(first)
    assert await leaders([first, second]) == [meanwhile]
    await one_held_and_one_pending(second)
    await roster(second, 2)
    await roster(first, 2)
    await second.close()
    again = await leader([first], above=meanwhile.epoch)
    assert await write(first, "again") == 200
    assert [each["epoch"] for each in await site.effects()] == [meanwhile.epoch, again.epoch]
    assert await uncaught(first) == []


async def test_a_cached_page_holds_nothing_and_waits_for_nothing(browser: ChaosBrowser, site: Site) -> None:
    first, second, epoch = await _leader_and_standby(browser, site)
    await roster(first, 2)
    await roster(second, 2)
    one, other = [await tab.evaluate("() => ({ id: tab.id, engine: tab.engine.id })") for tab in (first, second)]
    await first.navigate("/blank2")
    await leader([second], above=epoch)

    # Asking puts an end to what is cached: this page is not brought back.
    names = await second.evaluate(_NAMES)
    mine = (one["id"], one["engine"])
    assert [name for name in names["held"] if any(each in name for each in mine)] == []
    # The second tab's engine has begun to watch the first one's before that went; it may notice a moment later.
    others_engine = [name for name in names["pending"] if name.endswith(f":engine:{other['engine']}")]
    assert len(others_engine) == 1, "only the second page itself still watches its engine"


async def test_many_journeys_leave_one_interpreter_and_no_lock_behind(browser: ChaosBrowser, site: Site) -> None:
    first, second, epoch = await _leader_and_standby(browser, site)
    (engine,) = {await first.evaluate("() => tab.engine.id")}
    for _ in range(3):
        assert await first.bfcache_round_trip("/blank2"), await first.not_restored_reasons()
        await stands_by(first)
        assert await first.evaluate("() => tab.engine.id") == engine
    await leader([second], above=epoch)
    await one_held_and_one_pending(second)
    await first.evaluate("() => tab.leave('goodbye')")
    await roster(second, 1)
    facts = await join(first, host="window")
    assert facts["engine"]["id"] == engine, "left and joined again in the same page"
    await roster(second, 2)
    assert await uncaught(first) == []


@pytest.mark.parametrize("other", OTHERS)
async def test_the_leader_is_frozen(browser: ChaosBrowser, site: Site, other: str) -> None:
    first, second, epoch = await _leader_and_standby(browser, site, other)
    name = await first.evaluate("() => tab.id")
    # Registered last, so this is the end of the handlers.
    await second.evaluate(LISTEN)
    await first.evaluate(_LAST_WORD.format(of="document", at="freeze"))
    await second.show()
    await first.freeze()
    new = await leader([second], above=epoch)
    frozen = float(await second.until("() => went"))
    assert new.at - frozen < 10_000, "nobody waited for it to be taken over, which costs a minute"
    assert await write(second, "one") == 200
    knows = "(id) => tab.presence().tabs.some((each) => each.tabId === id && each.lifecycle === 'frozen')"
    await second.until(knows, what="the others to know that it is frozen", arg=name)
    await first.thaw()
    run = (await _state(first))["runs"][0]
    assert run["reason"] == "freeze" and run["abortedAt"] <= frozen
    await stands_by(first)
    assert await leaders([first, second]) == [new]
    await second.close()
    await leader([first], above=new.epoch)
    assert await write(first, "two") == 200


async def _state(tab: ChaosTab) -> dict[str, Any]:
    at = await now(tab)
    assert at is not None
    return at


async def test_the_next_in_line_is_frozen_when_the_leader_goes(browser: ChaosBrowser, site: Site) -> None:
    first, following, epoch = await _leader_and_standby(browser, site)
    (last,) = await standing(browser, site, "window")
    await following.freeze()
    await stands_by(last)

    async def withdrawn() -> bool:
        # Whose place in line changed withdraws and asks anew: for a moment nobody may be waiting.
        return await locks(last) == {"held": 1, "pending": 1}

    await until(withdrawn, "only the last one to wait: the frozen one has withdrawn")
    await first.close()
    new = await leader([last], above=epoch)
    await following.thaw()
    await stands_by(following)
    await last.close()
    await leader([following], above=new.epoch)


async def test_the_only_tab_is_frozen_and_thawed_again_and_again(browser: ChaosBrowser, site: Site) -> None:
    (tab,) = await standing(browser, site, "window")
    watcher = await site.open(browser)
    epoch = 0
    for _ in range(3):
        epoch = (await leader([tab], above=epoch)).epoch
        await tab.freeze()
        assert await locks(watcher) == {"held": 0, "pending": 0}
        await tab.thaw()
    await leader([tab], above=epoch)
    assert await write(tab, "one") == 200


async def test_reloaded_and_duplicated(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    first = await join(tab, host="window")
    copy = await tab.duplicate()
    second = await join(copy, host="window")
    assert first["id"] != second["id"] and first["generation"] == second["generation"] == 1
    await site.stand(tab)
    old = await leader([tab])
    await site.stand(copy)
    await stands_by(copy)
    await tab.reload()
    new = await leader([copy], above=old.epoch)
    again = await join(tab, host="window")
    assert (again["id"], again["generation"]) == (first["id"], 2)
    assert again["engine"]["id"] != first["engine"]["id"]
    await site.stand(tab)
    await stands_by(tab)
    await copy.close()
    await leader([tab], above=new.epoch)


async def test_an_ordinary_life_leaves_no_word_on_the_console(browser: ChaosBrowser, site: Site) -> None:
    tabs = [await joined(browser, site) for _ in range(2)]
    for tab in tabs:
        await site.stand(tab)
    old = await leader(tabs)
    (rest,) = [tab for tab in tabs if tab is not old.tab]
    await hand_over(old, [rest])
    await leader([rest], above=old.epoch)
    told = await rest.evaluate("() => tab.diagnose()")
    assert told["page"]["host"] == "window" and told["engine"], told
    await tabs[0].freeze()
    await tabs[0].thaw()
    assert await tabs[1].bfcache_round_trip("/blank2")
    await tabs[1].until("() => tab.hostState.state === 'connected'", what="joined again")
    for tab in tabs:
        await tab.evaluate("() => tab.leave('goodbye')")
        assert await uncaught(tab) == []
        assert list(tab.log) == []

    async def nothing_left() -> bool:
        names = await tabs[0].evaluate(_NAMES)
        return {name.split(":")[2] for name in [*names["held"], *names["pending"]]} <= {"engine"}

    await until(nothing_left, "the locks of the tabs that left to be free")
