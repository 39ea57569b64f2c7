"""What only the browser has to show of the ports: proxies, quota, wiped storage, foreign messages, other tabs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Playwright

from tabhelm.testing import ChaosBrowser, ChaosTab, wait_for

from . import site
from .room import PythonRoom

DURABLE_LIMIT_MS = 1000.0
"""The figure to reach: 1,000 operations enqueued in one call are durable within a second."""


async def enter(browser: ChaosBrowser, origin: str) -> PythonRoom:
    inside = Path(__file__).with_name("inside.py").read_text()
    return await PythonRoom.enter(browser, origin, {"inside.py": inside})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def room(chromium_path: str, playwright_driver: Playwright) -> AsyncIterator[PythonRoom]:
    with site.serve() as origin:
        async with ChaosBrowser.launch(chromium_path, playwright=playwright_driver) as browser:
            yield await enter(browser, origin)


@pytest_asyncio.fixture(loop_scope="session")
async def other(room: PythonRoom) -> AsyncIterator[ChaosTab]:
    """A second tab, without an interpreter."""
    tab = await room.tab.browser.new_tab(f"{room.origin}/blank")
    yield tab
    await tab.close()


async def test_no_operation_leaves_a_proxy_behind(room: PythonRoom) -> None:
    grown = await room.call("inside.leaks", timeout=300)
    assert {name: count for name, count in grown.items() if count} == {}
    assert len(grown) == 13


# -- locks -------------------------------------------------------------------------------------------------------------


async def test_cancelled_requests_leave_nothing_in_the_queue(room: PythonRoom) -> None:
    seen = await room.call("inside.cancelled_requests_are_withdrawn")
    assert seen == {"queued": 100, "pending": 0, "held": 0, "desk": 0}


async def test_a_grant_that_comes_after_the_cancellation_is_not_kept(room: PythonRoom) -> None:
    assert await room.call("inside.late_grants_are_let_go") == []


async def test_a_lock_that_was_let_go_is_held_no_more_before_anybody_is_told(room: PythonRoom) -> None:
    assert await room.call("inside.held_of_what_was_let_go") == [True, False, False]


async def test_a_theft_by_another_tab_is_told(room: PythonRoom, other: ChaosTab) -> None:
    assert await room.call("inside.hold", "test:v1:leader:theft")
    await other.evaluate("() => navigator.locks.request('test:v1:leader:theft', { steal: true }, () => 1)")
    await room.tab.until("() => true")

    async def told() -> bool:
        found: list[Any] = await room.call("inside.lock_state", "test:v1:leader:theft")
        return found == [False, ["stolen"]]

    await wait_for(told, 10, "the theft to be told")


async def test_drop_hands_all_locks_to_the_waiting_tab(room: PythonRoom, other: ChaosTab) -> None:
    names = [f"test:v1:leader:dropped-{number}" for number in range(5)]
    for name in names:
        await room.call("inside.hold", name, "page")
    await other.evaluate(
        """(names) => {
          window.granted = names.map((name) => navigator.locks.request(name, () => name));
          window.count = 0;
          for (const grant of window.granted) grant.then(() => (window.count += 1));
        }""",
        names,
    )
    await other.until(
        "async (count) => (await navigator.locks.query()).pending.length === count", arg=len(names), what="all queued"
    )
    assert await other.evaluate("() => window.count") == 0
    assert await room.call("inside.drop_and_count", "page", names) == [False] * len(names)
    assert await other.evaluate("async () => (await Promise.all(window.granted)).length", timeout=30) == len(names)


# -- database ----------------------------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_a_thousand_operations_in_one_transaction(room: PythonRoom) -> None:
    best = {"put": float("inf")}
    for _ in range(3):
        taken = await room.call("inside.thousand_operations")
        best = min(best, taken, key=lambda figures: figures["put"])
    print(f"1,000 operations, one strict transaction: {best}")
    assert best["put"] <= DURABLE_LIMIT_MS


async def test_a_full_storage_is_told_and_lets_writes_pass_later(room: PythonRoom) -> None:
    browser = room.tab.browser
    with site.serve() as origin:  # an origin of its own: Chromium remembers for half a minute how much space was left
        full = await enter(browser, origin)
        await browser.quota(origin, 200_000)
        assert await full.call("inside.open_database", "test:quota") is None
        assert await full.call("inside.write_bytes", 2_000_000) == "QuotaExceeded"
        assert await full.call("inside.write_bytes", 1_000) == "written", "the connection is still good"
        await browser.quota(origin, None)
        assert await full.call("inside.write_bytes", 2_000_000) == "written"
        await full.tab.close()


async def test_storage_wiped_under_an_open_connection(room: PythonRoom) -> None:
    assert await room.call("inside.open_database", "test:wiped") is None
    await room.tab.browser.storage_clear(room.origin, "indexeddb")
    assert await room.call("inside.count_all") == 0, "the next transaction opens anew, and finds nothing"
    assert await room.call("inside.write_bytes", 10) == "written"
    events = await room.call("inside.database_events")
    assert events[:3] == ["opened", "closed", "opened"]


async def test_storage_wiped_under_a_running_transaction(room: PythonRoom) -> None:
    assert await room.call("inside.open_database", "test:wiped-running") is None
    await room.tab.evaluate(
        """() => {
          const call = pyodide.pyimport("inside").endless;
          window.ended = "running";
          call(3).then((how) => (window.ended = how));
        }"""
    )
    await room.tab.browser.storage_clear(room.origin, "indexeddb")
    how = await room.tab.until("() => window.ended !== 'running' && window.ended", what="the transaction to end")
    assert how in ("DatabaseClosed", "completed"), how
    assert await room.call("inside.write_bytes", 10) == "written"


async def test_denied_storage_is_told_each_time_and_asked_for_again(room: PythonRoom) -> None:
    *denied, last = await room.call("inside.without_storage")
    assert [text.partition(":")[0] for text in denied] == ["DatabaseDenied"] * 4, denied
    assert "has no IndexedDB" in denied[0] and "SecurityError" in denied[2]
    assert last == "written"


async def test_a_newer_version_is_a_clear_error(room: PythonRoom, other: ChaosTab) -> None:
    await other.evaluate(
        """() => new Promise((resolve, reject) => {
          const request = indexedDB.open("test:newer", 7);
          request.onsuccess = () => { request.result.close(); resolve(); };
          request.onerror = () => reject(request.error);
        })"""
    )
    error = await room.call("inside.open_database", "test:newer")
    assert error.startswith("DatabaseNewer: database 'test:newer' is newer than version 1"), error


async def test_a_connection_gives_way_to_an_upgrade_and_to_a_deletion(room: PythonRoom, other: ChaosTab) -> None:
    assert await room.call("inside.open_database", "test:gives-way") is None
    deleted = await other.evaluate(
        """() => new Promise((resolve) => {
          const request = indexedDB.deleteDatabase("test:gives-way");
          request.onsuccess = () => resolve("deleted");
          request.onblocked = () => resolve("blocked");
        })"""
    )
    assert deleted == "deleted"
    assert await room.call("inside.count_all") == 0
    assert await room.call("inside.database_events") == ["opened", "versionchange", "opened"]


async def test_a_blocked_database_is_told_and_opens_late_and_gives_way_again(room: PythonRoom, other: ChaosTab) -> None:
    """Another tab keeps an old connection open and does not give way: 10 s, then a clear error."""
    await other.evaluate(
        """() => new Promise((resolve, reject) => {
          const request = indexedDB.open("test:blocked", 1);
          request.onsuccess = () => { window.database = request.result; resolve(); };
          request.onerror = () => reject(request.error);
        })"""
    )
    error = await room.call("inside.open_database", "test:blocked", 2)
    assert error.startswith("DatabaseBlocked: database 'test:blocked' did not open within 10 s: another"), error
    assert await room.call("inside.database_events") == ["blocked"]
    # The old connection goes: the upgrade that nobody waits for any more succeeds now, and must not block the next.
    answer = await other.evaluate(
        """() => new Promise((resolve, reject) => {
          window.database.close();
          const request = indexedDB.open("test:blocked", 3);
          request.onsuccess = () => { request.result.close(); resolve("opened"); };
          request.onerror = () => reject(request.error);
        })""",
        timeout=10,
    )
    assert answer == "opened"
    assert await room.call("inside.database_events") == ["blocked", "opened", "versionchange"]


# -- channel and http --------------------------------------------------------------------------------------------------


async def test_foreign_messages_arrive_as_plain_values(room: PythonRoom) -> None:
    came = await room.call("inside.foreign_messages")
    assert came[:6] == [None, 42, "sched$x", {}, {"leader": None, "deep": [None, 1.5]}, True]
    assert came[6:8] == [None, 2**70], "undefined, and a BigInt"
    assert came[8:] == ["text of 5000000", {}]


async def test_an_answer_is_read_whole(room: PythonRoom) -> None:
    answer = await room.call("inside.fetch", "POST", "/odd/echo", "ä body")
    assert (answer["status"], answer["type"], answer["redirected"]) == (201, "application/json", False)
    assert '"body": "\\u00e4 body"' in answer["body"] and '"x-test": "1"' in answer["body"]


async def test_a_redirect_is_followed_and_reported(room: PythonRoom) -> None:
    answer = await room.call("inside.fetch", "GET", "/odd/redirect")
    assert (answer["status"], answer["redirected"]) == (201, True)


async def test_a_huge_body_is_cut_and_an_empty_one_is_empty(room: PythonRoom) -> None:
    assert (await room.call("inside.fetch", "GET", "/odd/big"))["size"] == 1 << 20
    empty = await room.call("inside.fetch", "GET", "/odd/empty")
    assert (empty["status"], empty["body"]) == (204, "")


async def test_every_failure_is_unreachable_and_names_the_url(room: PythonRoom) -> None:
    for what in ("silent", "half"):
        answer = await room.call("inside.fetch", "GET", f"/odd/{what}", None, 0.3)
        assert f"GET /odd/{what}: no whole answer within 0.3 s" in answer["unreachable"]
    assert "/odd/cut" in (await room.call("inside.fetch", "GET", "/odd/cut"))["unreachable"]
    nobody = "http://127.0.0.1:9/nobody"
    assert nobody in (await room.call("inside.fetch", "GET", nobody))["unreachable"]


async def test_cancelling_ends_a_request_at_once(room: PythonRoom) -> None:
    assert await room.call("inside.cancel_a_request", "/odd/silent") < 10.0
