"""One tab leads; whatever happens to it, another one does then, and only that one's writes count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from e2e.everywhere.crew import crew, stand
from e2e.kit import WATCHED, Site, hand_over, join, leader, leaders, now, stands_by, uncaught, until, write
from e2e.storage_life.acts import ended, told

from tabhelm.testing.driver import DrivenBrowser, DrivenTab

LEAVES: dict[str, Callable[[DrivenTab], Awaitable[object]]] = {
    "close": lambda tab: tab.close(),
    "navigate": lambda tab: tab.navigate("/blank2"),
    "reload": lambda tab: tab.reload(),
    "crash": lambda tab: tab.kill_process(),
}
_LATE = """async () => {
  try {
    const headers = { ...stands.job.runs[0].ctx.headers(), "Content-Type": "application/json" };
    const operation = { op_id: "late", partition: "p", payload: { kind: "note", name: "late" } };
    const body = JSON.stringify({ operations: [operation] });
    return (await fetch("/api/operations", { method: "POST", headers, body })).status;
  } catch (error) {
    return error.name;
  }
}"""


async def test_one_of_three_leads_and_hands_over(driven: DrivenBrowser, site: Site, host: str) -> None:
    tabs = await crew(driven, site, host, 3)
    assert {await tab.evaluate("() => tab.host") for tab in tabs} == {host}
    old = await leader(tabs)
    assert await write(old.tab, "one") == 200
    await hand_over(old, [tab for tab in tabs if tab is not old.tab])
    new = await leader(tabs, above=old.epoch)
    assert new.tab is not old.tab
    assert await write(new.tab, "two") == 200
    assert [(each["op_id"], each["epoch"]) for each in await site.effects()] == [("one", old.epoch), ("two", new.epoch)]
    for tab in tabs:
        await tab.until("() => tab.presence().tabs.length === 3", what="all three in the roster")
        assert await uncaught(tab) == []


@pytest.mark.parametrize("how", LEAVES)
async def test_the_leader_goes(driven: DrivenBrowser, site: Site, host: str, how: str) -> None:
    # It goes alone: the shared engine lives in the process of another tab.
    other = await site.joined(driven, host=host)
    first, second = await crew(driven, site, host, 2)
    old = await leader([first])
    if how == "crash" and host == "shared":
        assert await first.pid() not in await driven.worker_pids()
    identity = await first.evaluate("() => [tab.id, tab.generation]")
    await LEAVES[how](first)
    new = await leader([second], above=old.epoch, timeout=30)
    assert await write(second, "next") == 200
    await other.until("() => tab.presence().tabs.length === 2", what="the leader to be out of the roster")
    if how == "reload":
        facts = await join(first, host=host)
        assert [facts["id"], facts["generation"]] == [identity[0], identity[1] + 1]
        await stand(site, first)
        await stands_by(first)
        assert [each.tab for each in await leaders([first, second])] == [new.tab]


async def test_the_leader_goes_away_and_comes_back(driven: DrivenBrowser, site: Site, host: str) -> None:
    first, second = await crew(driven, site, host, 2)
    old = await leader([first])
    await first.navigate("/blank2")
    new = await leader([second], above=old.epoch, timeout=30)
    restored = await first.back()
    assert restored == ("bfcache" not in driven.lacks)
    if not restored:  # a new document: what the application does when it is loaded
        await join(first, host=host)
        await stand(site, first)
    await stands_by(first)
    assert [each.tab for each in await leaders([first, second])] == [second]
    await second.evaluate("() => stands.job.election.stop('enough')")
    await leader([first], above=new.epoch)
    assert await write(first, "back") == 200


async def test_the_process_of_the_shared_engine_is_killed(driven: DrivenBrowser, site: Site) -> None:
    first, *others = await crew(driven, site, "shared", 3)
    old = await leader([first])
    assert await driven.worker_pids() == {await first.pid()}
    await first.kill_process()
    new = await leader(others, above=old.epoch)
    assert new.engine != old.engine
    assert await write(new.tab, "next") == 200
    for tab in others:
        await tab.until("() => tab.hostState.state === 'connected'", what="the other tabs in the new engine")


async def test_the_page_that_made_the_engine_is_closed_and_then_another(driven: DrivenBrowser, site: Site) -> None:
    # The engine outlives its maker's page; in WebKit it may end with the next page, and another one takes its place.
    first, second, third = await crew(driven, site, "shared", 3)
    old = await leader([first])
    await first.close()
    next_one = await leader([second, third], above=old.epoch, timeout=30)
    await next_one.tab.close()
    (rest,) = [tab for tab in (second, third) if tab is not next_one.tab]
    last = await leader([rest], above=next_one.epoch)
    assert await write(last.tab, "one") == 200


@pytest.mark.parametrize("fault", ["hang", "stop"])
async def test_the_leader_stalls_and_wakes_up_too_late(
    driven: DrivenBrowser, site: Site, host: str, fault: str
) -> None:
    other = await site.joined(driven, host=host, **WATCHED)
    first, second = await crew(driven, site, host, 2, join=WATCHED)
    old = await leader([first])
    seconds = 20.0
    if host == "window":
        # Timers of a hidden page may come once a minute: its engine announces rare beats, and is waited for longer.
        seconds = 30.0
        await first.show()
        visible = "(id) => tab.presence().tabs.some(({ tabId, visible }) => tabId === id && visible)"
        await second.until(visible, what="it to hear that the leader is visible", arg=old.tab_id)
    await (first.hang(seconds) if fault == "hang" else first.stop())
    await second.show()  # for the same reason: a page whose timers are held back has proved nothing by not hearing
    new = await leader([second], above=old.epoch, timeout=30)
    assert first.silent, "it was to be replaced while it stood still"
    assert await write(second, "next") == 200
    await first.cont()
    assert await first.evaluate(_LATE, timeout=60) in ("LeadershipLost", 409)

    async def knows() -> bool:
        at = await now(first)
        return at is not None and not at["leads"] and at["runs"][0]["abortedAt"] is not None

    await until(knows, "the old leader to know that it leads no more")
    assert [each.tab for each in await leaders([first, second])] == [new.tab]
    assert [each["op_id"] for each in await site.effects()] == ["next"]
    assert not other.gone


async def test_a_duplicated_tab_is_another_tab(driven: DrivenBrowser, site: Site, host: str) -> None:
    (first,) = await crew(driven, site, host, 1)
    old = await leader([first])
    copy = await first.duplicate()
    facts = await join(copy, host=host)
    assert facts["id"] != old.tab_id
    await stand(site, copy)
    await stands_by(copy)
    for tab in (first, copy):
        await tab.until("() => tab.presence().tabs.length === 2", what="both in the roster")
    assert await leaders([first, copy]) == [old]
    await first.close()
    await leader([copy], above=old.epoch)


async def test_storage_is_wiped_under_the_leader(driven: DrivenBrowser, site: Site, host: str) -> None:
    first, second = await crew(driven, site, host, 2)
    old = await leader([first])
    assert await write(first, "one") == 200
    await driven.wipe(site.url)
    for tab in (first, second):
        await told(tab, "wiped")
    await ended(first)  # nobody need ask it to step down: its epoch is gone
    new = await leader([first, second], above=old.epoch)
    assert await write(new.tab, "two") == 200
    first_effect, second_effect = await site.effects()
    assert first_effect["domain"] == second_effect["domain"], "the living remember what was wiped"
    assert new.epoch > first_effect["epoch"]
