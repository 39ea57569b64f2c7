"""What befalls two pages that run their own Python: frozen, cached, hung, stopped, offline, duplicated, gone.

The two pages of this module live through all of it one after the other; each test has a resource of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from e2e.kit import STALL_MS
from playwright.async_api import Playwright

from tabhelm.testing import ChaosBrowser, wait_for

from .kit import PythonPage, locks, one_leader
from .site import PythonSite, serve

Pair = tuple[PythonPage, PythonPage]


@pytest.fixture(scope="module")
def shared_site(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonSite]:
    with serve(bundle, tmp_path_factory.mktemp("receiver")) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(chromium_path: str, playwright_driver: Playwright, shared_site: PythonSite) -> AsyncIterator[Pair]:
    async with ChaosBrowser.launch(chromium_path, playwright=playwright_driver) as launched:
        a, b = [await PythonPage.joined(launched, shared_site, stall_after=STALL_MS / 1000) for _ in range(2)]
        yield a, b


async def lead(resource: str, leader: PythonPage, standby: PythonPage, **policy: object) -> int:
    """Let one lead and the other stand by; returns the epoch."""
    await leader("stand", resource, policy)
    epoch: int = (await leader.leads(resource))["epoch"]
    await standby("stand", resource, policy)

    async def queued() -> bool:
        return f"e2e:v1:leader:{resource}" in (await locks(standby.tab))["pending"]

    await wait_for(queued, 15.0, "the standby's request")
    return epoch


async def over(resource: str, *pages: PythonPage) -> None:
    for page in pages:
        await page("stop", resource)


async def test_a_frozen_leader_is_replaced_at_once_and_a_frozen_standby_is_in_nobody_s_way(pair: Pair) -> None:
    a, b = pair
    first = await lead("frozen", a, b)
    await b.tab.show()
    began = time.monotonic()
    await a.tab.freeze()
    second = await b.leads("frozen", above=first)
    print(f"frozen: another page leads {(time.monotonic() - began) * 1000:.0f} ms after the command")
    pending = (await locks(b.tab))["pending"]
    assert not [name for name in pending if ":leader:" in name]
    await b.sees(lambda seen: "frozen" in [tab[0] for tab in seen["tabs"].values()], "the frozen tab says so")
    await a.tab.thaw()
    assert await a("lost") is not None
    assert (await a("now", "frozen"))["runs"][-1]["ended"] is not None
    await a.tab.show()
    await b.tab.freeze()
    await a.leads("frozen", above=second["epoch"])
    await b.tab.thaw()
    await over("frozen", a, b)


async def test_a_page_in_the_cache_keeps_nothing_and_comes_back_with_the_same_elections(pair: Pair) -> None:
    a, b = pair
    first = await lead("cached", a, b)
    before = await a("who")
    await a("queue", "cached", {})
    await a.tab.show()
    await a.tab.navigate("/blank2")
    second = await b.leads("cached", above=first)

    async def alone() -> bool:
        found = await locks(b.tab)
        return len(found["held"]) == 3 and found["pending"] == []

    await wait_for(alone, 15.0, "only the other page's own locks to be left")
    await b.sees(lambda seen: len(seen["tabs"]) == 1, "it said goodbye")
    assert await a.tab.back(), await a.tab.not_restored_reasons()
    await b.sees(lambda seen: len(seen["tabs"]) == 2, "it is back")
    after = await a("who")
    assert after["id"] == before["id"] and after["connection"] != before["connection"]
    assert after["generation"] == before["generation"] + 1 and after["lifecycle"] == "active"
    await a("enqueue", "cached", "c", 2)
    assert (await a("stats", "cached"))["queued"] == 2
    await b("stop", "cached")
    await a.leads("cached", above=second["epoch"])
    await over("cached", a)
    assert await a.uncaught() == []


async def test_an_enqueue_that_is_under_way_when_its_page_is_cached_settles_once(
    pair: Pair, shared_site: PythonSite
) -> None:
    a, b = pair
    await a("queue", "midst", {})
    await a.tab.show()
    # Nobody waits for the answer: the page is gone before it comes.
    await a.tab.evaluate(
        "([name, args]) => { inside.call(name, args); }", ["leave_in_midst", '["midst", "m", 100, "/blank2"]']
    )
    await a.tab.page.wait_for_url("**/blank2")
    assert await a.tab.back(), await a.tab.not_restored_reasons()
    found = await a("settled", "midst")
    assert found["left"] > 0, "all were answered before the page left"
    count = len(found["ids"])
    assert len(set(found["ids"])) == count and not any("(" in each for each in found["ids"]), found
    assert (await a("stats", "midst"))["queued"] == count
    await b("queue", "midst", {"endpoint": "/api/operations"})
    await b.tab.show()

    async def emptied() -> bool:
        at = await b("stats", "midst")
        return (at["queued"], at["in_flight"], at["done"]) == (0, 0, count)

    await wait_for(emptied, 60.0, "the queue to be empty")
    sent = [each for each in await shared_site.effects() if each["partition"] == "m"]
    assert sorted(each["op_id"] for each in sent) == sorted(found["ids"])
    assert await a.uncaught() == []


@pytest.mark.parametrize("how", ["close", "freeze"])
async def test_a_page_with_its_own_sender_is_lost_in_mid_send(pair: Pair, shared_site: PythonSite, how: str) -> None:
    b, queue = pair[1], f"sending-{how}"
    doomed = await PythonPage.joined(b.tab.browser, shared_site)
    await doomed("hold_sends", queue, True)
    await doomed("send_from_here", queue, {})
    ids = await doomed("enqueue", queue, how, 4)

    async def asked() -> bool:
        return len(await doomed("sends")) == 1

    await wait_for(asked, 15.0, "its sender to be asked")
    epoch = (await doomed("sends"))[0]["epoch"]
    await b("send_from_here", queue, {})
    await b.tab.show()
    await (doomed.tab.close() if how == "close" else doomed.tab.freeze())

    async def emptied() -> bool:
        return bool((await b("stats", queue))["done"] == 4)

    await wait_for(emptied, 30.0, "the other page to send everything")
    seen = [each for each in await b("sends") if each["id"] in ids]
    assert [each["id"] for each in seen] == ids and {each["ended"] for each in seen} == {200}
    assert {each["attempt"] for each in seen} == {1}, "what was lost in mid-send has not failed"
    assert all(each["epoch"] > epoch for each in seen)
    if how == "freeze":
        await doomed.tab.thaw()
        await doomed("hold_sends", queue, False)

        async def ended() -> bool:
            return (await doomed("sends"))[0]["ended"] is not None

        await wait_for(ended, 15.0, "the late sender to end")
        assert [each["ended"] for each in await doomed("sends")] == ["CancelledError"]
        await doomed.tab.close()
    sent = [each["op_id"] for each in await shared_site.effects() if each["partition"] == how]
    assert sent == ids


async def test_a_leader_that_hung_gives_up_when_it_wakes(pair: Pair, shared_site: PythonSite) -> None:
    a, b = pair
    first = await lead("hung", a, b)
    await a("keep_headers", "before")
    await b.tab.show()
    await a.tab.show()
    await a.tab.hang(2.5 * STALL_MS / 1000)
    second = await b.leads("hung", above=first, timeout=30.0)
    assert await a("lost") is not None
    assert await a("write", "late-hung", "before") == 409
    assert "late-hung" not in [effect["op_id"] for effect in await shared_site.effects()]
    assert await b("write", "mine-hung") == 200
    await b("stop", "hung")
    await a.leads("hung", above=second["epoch"])
    await over("hung", a)


async def test_a_stopped_leader_is_taken_over_and_its_late_writes_are_refused(
    pair: Pair, shared_site: PythonSite
) -> None:
    a, b = pair
    await a.tab.show()
    first = await lead("stopped", a, b, takeoverAfterMs=10_000)
    await a("keep_headers", "stopped")
    began = time.monotonic()
    await a.tab.stop()
    await b.tab.show()  # as its user does when a tab does not react; a hidden standby waits for a minute
    try:
        second = await b.leads("stopped", above=first, timeout=60.0)
        print(f"stopped: taken over after {time.monotonic() - began:.1f} s (asked for: 10 s)")
        assert await b("write", "mine-stopped") == 200
    finally:
        await a.tab.cont()
    assert await a("write", "late-stopped", "stopped") == 409
    assert await a("lost") is not None
    assert "took-over" in [event["type"] for event in await b("events")]
    assert "late-stopped" not in [effect["op_id"] for effect in await shared_site.effects()]
    assert (await b("now", "stopped"))["epoch"] == second["epoch"], "the one that woke up did not take it back"
    await over("stopped", a, b)


async def test_a_leader_without_network_hands_over(pair: Pair) -> None:
    a, b = pair
    first = await lead("network", a, b, online=True)
    await a.tab.offline(True)
    await b.leads("network", above=first)
    assert not (await a("who"))["online"]
    await a.tab.offline(False)
    await over("network", a, b)


async def test_a_duplicated_tab_is_another_and_a_reloaded_one_the_same(pair: Pair, shared_site: PythonSite) -> None:
    a, _ = pair
    mine = await a("who")
    copy = await PythonPage.boot(await a.tab.duplicate(), shared_site)
    theirs = await copy("join", {})
    assert theirs["id"] != mine["id"] and theirs["generation"] == 1
    second = await copy("join", {}, "second")
    assert second["id"] not in (theirs["id"], mine["id"]), "a second join of one page is a tab of its own"
    await copy.tab.reload()
    again = await (await PythonPage.boot(copy.tab, shared_site))("join", {})
    assert again["id"] == theirs["id"] and again["generation"] == 2
    await copy.tab.close()
    assert await a.uncaught() == []


@pytest.mark.parametrize("how", ["close", "kill"])
async def test_when_the_leader_s_page_is_gone_another_leads_at_once(
    pair: Pair, shared_site: PythonSite, how: str
) -> None:
    b = pair[1]
    doomed = await PythonPage.joined(b.tab.browser, shared_site)
    first = await lead(how, doomed, b)
    await b.tab.show()
    began = time.monotonic()
    await (doomed.tab.close() if how == "close" else doomed.tab.kill_process())
    await b.leads(how, above=first)
    print(f"{how}: another page leads {(time.monotonic() - began) * 1000:.0f} ms after the command")
    await b.sees(lambda seen: len(seen["tabs"]) == 2, "the dead tab is gone from the roster", timeout=12.0)
    await over(how, b)


async def test_many_pages_have_one_leader(pair: Pair, shared_site: PythonSite) -> None:
    third = await PythonPage.joined(pair[0].tab.browser, shared_site)
    pages = [*pair, third]
    for page in pages:
        await page("stand", "many", {})
    first = await one_leader(pages, "many")
    epoch = (await first("now", "many"))["epoch"]
    await first("stop", "many")
    second = await one_leader(pages, "many", above=epoch)
    assert second is not first
    await third.tab.close()
    await over("many", *pair)
