"""Faults of other libraries, done to this one in real tabs: a thief, clocks that differ, many starts at once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from e2e.kit import Site, leader, leaders, now, uncaught, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab

LOCK = "e2e:v1:leader:job"
_STEAL = """(name) => new Promise((stolen) => {
  void navigator.locks.request(name, { steal: true }, () => {
    stolen();
    return new Promise((giveBack) => { window.giveBack = giveBack; });
  }).then(() => { window.kept = true; }, (error) => { window.kept = error.name; });
})"""


async def stands_by(tab: ChaosTab) -> None:
    async def queued() -> bool:
        at = await now(tab)
        return at is not None and at["status"]["state"] == "waiting" and bool(at["status"]["standby"])

    await until(queued, f"{tab!r} to stand by", 30)


@pytest.mark.parametrize("host", ["shared", "window"])
async def test_a_robbed_leader_stops_at_once_and_never_steals_back(
    browser: ChaosBrowser, site: Site, host: str
) -> None:
    """The thief is no code of ours: the browser's lock is open to every script of the origin."""
    first = await site.joined(browser, host=host)
    await site.stand(first)
    old = await leader([first])
    thief = await site.open(browser)
    await thief.evaluate(_STEAL, LOCK)
    run = await first.until("() => stands.job.runs[0].abortedAt !== null && stands.job.runs[0]", what="the loop to end")
    assert "stolen" in run["reason"]
    lost = "() => { try { stands.job.runs[0].ctx.nextToken(); return ''; } catch (error) { return error.name; } }"
    assert await first.evaluate(lost) == "LeadershipLost"
    await stands_by(first)
    assert await leaders([first]) == []
    assert await thief.evaluate("() => window.kept") is None, "the thief was robbed in turn"
    await thief.evaluate("() => giveBack()")
    new = await leader([first], above=old.epoch)
    assert await thief.until("() => window.kept") is True
    assert await write(first, "after") == 200
    assert [each["epoch"] for each in await site.effects()] == [new.epoch]
    assert await uncaught(first) == []


_SHIFT = "(ms) => { const real = Date.now; Date.now = () => real.call(Date) + ms; }"


async def test_wall_clocks_ten_minutes_apart_change_nothing(browser: ChaosBrowser, two_builds: Site) -> None:
    """Time is judged by each observer's own monotonic clock: a leader from the future or the past is a leader."""
    site = two_builds
    first = await site.joined(browser)
    second = await site.joined(browser, base="/tabhelm2")
    workers = await browser.shared_workers(url_contains="engine.mjs")
    for place, minutes in zip([*workers, first, second], (5, -5, 5, -5), strict=True):
        await place.evaluate(_SHIFT, minutes * 60_000)
    for tab in (first, second):
        await site.stand(tab)
    epoch = 0
    written: list[str] = []
    for _ in range(4):
        old = await leader([first, second], above=epoch)
        epoch = old.epoch
        (rest,) = [tab for tab in (first, second) if tab is not old.tab]
        await rest.until("(id) => stands.job.election.leader()?.tabId === id", what="the other to know", arg=old.tab_id)
        await stands_by(rest)
        assert await write(old.tab, f"of-{epoch}") == 200
        written.append(f"of-{epoch}")
        await old.tab.evaluate("() => stands.job.election.stepDown('your turn')")
        assert (await leader([rest], above=epoch)).tab is rest
    for tab in (first, second):
        assert {info["liveness"] for info in await tab.evaluate("() => tab.presence().tabs")} == {"alive"}
        assert await tab.evaluate("() => events.filter(({ type }) => /fail|takeover|took-over/.test(type))") == []
        assert await uncaught(tab) == []
    assert [each["op_id"] for each in await site.effects()] == written


# Each loop runs until it is stopped: two leaders of one resource would both be in the list.
_RACE = """async ([start, names]) => {
  window.won ??= [];
  await new Promise((go) => setTimeout(go, start - clock()));
  window.races = names.map((name) => tab.lead(name, (ctx) => {
    won.push(name);
    return new Promise((end) => ctx.signal.addEventListener("abort", () => end(), { once: true }));
  }));
}"""
_LEADING = "() => [races.filter(({ status }) => status.state === 'leading').length, won.length]"
_STOP = "() => Promise.all(races.map((each) => (each.stop('over'), each.stopped)))"


async def test_eight_pages_ask_in_the_same_millisecond_fifty_times(browser: ChaosBrowser, two_builds: Site) -> None:
    """One grant each time, however close the requests: over two engines, the browser's lock decides."""
    site = two_builds
    bases = ["/tabhelm", "/tabhelm2"]
    # None of them shall be taken for stalled, and lead a second time.
    tabs = [await site.joined(browser, base=bases[number % 2]) for number in range(8)]
    for wave in range(10):
        names = [f"race-{wave}-{number}" for number in range(5)]
        start = float(await tabs[0].evaluate("() => clock()")) + 100
        await asyncio.gather(*(tab.evaluate(_RACE, [start, names]) for tab in tabs))

        async def all_lead() -> bool:
            seen = [await tab.evaluate(_LEADING) for tab in tabs]
            # That a tab leads is told before its loop is started.
            return all(sum(each) >= len(names) for each in zip(*seen, strict=True))  # noqa: B023

        await until(all_lead, f"each of {names} to have a leader", 30)
        won = Counter([name for tab in tabs for name in await tab.evaluate("() => won.splice(0)")])
        assert won == dict.fromkeys(names, 1)
        await asyncio.gather(*(tab.evaluate(_STOP) for tab in tabs))
