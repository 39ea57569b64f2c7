"""A leader on the window host that says nothing any more: hung, stopped, cut off. Only itself can free its lock."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
from e2e.kit import STALL_MS, STEADY_MS, Site, late, leader, leaders, now, stands_by, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab

from .tabs import joined, locks, standing, watched

TAKEOVER_MS = 10_000
_AFTERWARDS = """(stallAfterMs) => {
  window.late = null;
  const { ctx } = stands.job.runs.at(-1);
  // Its first turn after the page stood still comes before whatever is told to the page then.
  let last = performance.now();
  const timer = setInterval(() => {
    const gapMs = performance.now() - last;
    last += gapMs;
    if (gapMs < stallAfterMs) return;
    clearInterval(timer);
    try {
      late = [ctx.headers(), ctx.signal.aborted];
    } catch (error) {
      late = [error.name, ctx.signal.aborted];
    }
  }, 50);
}"""
Silence = Callable[[ChaosTab], Awaitable[Callable[[], Awaitable[None]]]]
"""Silences a tab; returns the way to wait for the end of it, or to end it."""


async def _hung(tab: ChaosTab) -> Callable[[], Awaitable[None]]:
    await tab.hang(30)

    async def over() -> None:
        await tab.until("() => true", 60)

    return over


async def _stopped(tab: ChaosTab) -> Callable[[], Awaitable[None]]:
    await tab.stop()
    enough = time.monotonic() + STEADY_MS / 1000 + 1

    async def noticed() -> bool:
        return time.monotonic() > enough

    async def over() -> None:
        await until(noticed, "a standstill that the page has to notice", 30)
        await tab.cont()

    return over


@pytest.mark.parametrize("silence", [_hung, _stopped])
@pytest.mark.parametrize("other", ["window", "shared"])
async def test_a_silent_leader_is_replaced_after_its_time(
    browser: ChaosBrowser, site: Site, silence: Silence, other: str
) -> None:
    (first,) = await standing(browser, site, "window", takeoverAfterMs=TAKEOVER_MS)
    old = await leader([first])
    (second,) = await standing(browser, site, other, takeoverAfterMs=TAKEOVER_MS)
    await stands_by(second)
    await watched(first, STEADY_MS)  # a hidden leader's word is good for a minute and more
    await until(lambda: _is_heard_visible(second, old.tab_id), "the second tab to hear that the first is visible")
    assert await write(first, "one") == 200
    began = await second.evaluate("() => clock()")
    await first.evaluate(_AFTERWARDS, STEADY_MS)
    over = await silence(first)
    await second.show()  # a page whose timers may be held back has proved nothing by not hearing
    new = await leader([second], above=old.epoch, timeout=25)
    assert first.silent
    # Counted from its last sign of life, a beat of five seconds ago at most.
    assert TAKEOVER_MS - 6_000 <= new.at - began <= TAKEOVER_MS + 10_000
    assert await write(second, "two") == 200
    await second.until("() => events.some(({ type }) => type === 'took-over')", what="the event")

    await over()
    await first.until("() => late", what="the first to go on")
    assert await first.evaluate("() => late") == ["LeadershipLost", True], "it doubts before it hears anything"
    assert await late(first, "late") == 409, "what was on its way is refused"
    await stands_by(first)
    assert await leaders([first, second]) == [new]
    assert [(each["op_id"], each["epoch"]) for each in await site.effects()] == [("one", old.epoch), ("two", new.epoch)]
    await second.close()
    await leader([first], above=new.epoch)
    assert await write(first, "three") == 200


async def _is_heard_visible(tab: ChaosTab, tab_id: str) -> bool:
    roster = await tab.evaluate("() => tab.presence().tabs")
    return any(each["tabId"] == tab_id and each["visible"] for each in roster)


@pytest.mark.parametrize("silence", [_hung, _stopped])
async def test_a_silent_leader_that_may_not_be_replaced_keeps_its_lock(
    browser: ChaosBrowser, site: Site, silence: Silence
) -> None:
    # Longer than the other's patience, shorter than a hang of 30 s; and the leader lets go itself when it wakes.
    (first,) = await standing(browser, site, "window", takeoverAfterMs="never")
    old = await leader([first])
    (second,) = await standing(browser, site, "window", takeoverAfterMs="never")
    await stands_by(second)
    await watched(first, STEADY_MS)
    began = await second.evaluate("() => clock()")
    over = await silence(first)
    await second.show()

    async def enough() -> bool:
        return bool(await second.evaluate("() => clock()") - began > TAKEOVER_MS + 5_000)

    await until(enough, "time to pass", 30)
    assert await leaders([second]) == []
    assert await locks(second) == {"held": 1, "pending": 1}
    await over()
    await leader([second], above=old.epoch)


async def test_a_visible_page_that_stood_still_lets_go_by_itself(browser: ChaosBrowser, site: Site) -> None:
    (first,) = await standing(browser, site, "window")
    old = await leader([first])
    (second,) = await standing(browser, site, "window")
    await stands_by(second)
    await watched(first, STEADY_MS)
    await first.evaluate(_AFTERWARDS, STEADY_MS)
    await first.hang(1.5 * STEADY_MS / 1000)
    new = await leader([second], above=old.epoch)
    assert await first.until("() => late", what="the first to go on") == ["LeadershipLost", True]
    at = await now(first)
    assert at is not None and at["runs"][0]["reason"] in ("doubt", "stalled")
    assert await write(second, "two") == 200
    await stands_by(first)
    assert await leaders([first, second]) == [new]


async def test_a_page_that_was_busy_for_less_goes_on_leading(browser: ChaosBrowser, site: Site) -> None:
    first, second = await standing(browser, site, "window", "window", join={"stallAfterMs": 2 * STEADY_MS})
    old = await leader([first, second])
    await watched(old.tab, 2 * STEADY_MS)
    await old.tab.hang(STALL_MS / 1000)
    assert await write(old.tab, "one") == 200
    assert await leaders([first, second]) == [old]


async def test_a_leader_that_goes_offline_yields(browser: ChaosBrowser, site: Site) -> None:
    first, second = await standing(browser, site, "window", "window", online=True)
    old = await leader([first, second])
    (rest,) = [tab for tab in (first, second) if tab is not old.tab]
    await old.tab.offline(True)
    new = await leader([rest], above=old.epoch)
    assert await write(rest, "one") == 200
    await old.tab.offline(False)
    await stands_by(old.tab)
    await rest.close()
    await leader([old.tab], above=new.epoch)


async def test_a_hidden_page_may_be_late(browser: ChaosBrowser, site: Site) -> None:
    # A hidden page's timers may be held back for a minute: that it was late is no reason to let go.
    tab = await joined(browser, site, stallAfterMs=500)
    await tab.hide()  # first: while it is seen, it doubts at every hiccup of the machine
    await site.stand(tab)
    old = await leader([tab])
    await tab.hang(1.5)
    assert await write(tab, "one") == 200
    assert (await leader([tab])).epoch == old.epoch
    # As soon as it has been seen, it is judged by the same measure as everybody.
    await watched(tab)
    await tab.hang(1.5)
    await leader([tab], above=old.epoch)
