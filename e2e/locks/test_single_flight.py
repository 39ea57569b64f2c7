"""Single flight in real tabs: in one page, between pages of one engine, between engines; when who does it is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from e2e.kit import WATCHED, Opens, Site, TabT, uncaught

from tabhelm.testing import ChaosBrowser
from tabhelm.testing.driver import DrivenBrowser, DrivenTab

from .bodies import FLIGHT, fly, landed, queued, runs
from .settings import in_each_engine


async def crew(browser: Opens[TabT], site: Site, *hosts: str, **options: Any) -> list[TabT]:
    return [await site.joined(browser, host=host, **options) for host in hosts]


async def quiet(*tabs: DrivenTab) -> None:
    for tab in tabs:
        assert await uncaught(tab) == []


MIXTURES = {"one-engine": ["shared"] * 3, "own-engines": ["window"] * 3, "mixed": ["shared", "shared", "window"]}


@in_each_engine("hosts", list(MIXTURES.values()), list(MIXTURES), elsewhere="mixed")
async def test_one_does_it_and_all_get_it(driven: DrivenBrowser, site: Site, hosts: list[str]) -> None:
    tabs = await crew(driven, site, *hosts)
    await fly(tabs[0], "first")
    await tabs[0].until("() => window.ran?.length === 1")
    for tab in tabs:
        await fly(tab, "second")
        await fly(tab, "third")
    await queued(tabs[0], 1, 2, FLIGHT)
    await tabs[0].evaluate("() => flights.first.end()")
    outcomes = [await landed(tab, name) for tab in tabs for name in ("second", "third")]
    assert all(outcome == outcomes[0] for outcome in outcomes), outcomes
    assert outcomes[0][0] == "value" and outcomes[0][1]["from"] == await tabs[0].evaluate("tab.id")
    assert await runs(*tabs) == 1
    await queued(tabs[0], 0, 0, FLIGHT)
    await fly(tabs[2], "later", ms=1)
    assert (await landed(tabs[2], "later"))[1]["from"] == await tabs[2].evaluate("tab.id")
    await quiet(*tabs)


async def test_all_at_once_in_many_engines(driven: DrivenBrowser, site: Site) -> None:
    """What is asked for in one moment is done once: nobody misses the result that came just before the lock."""
    tabs = await crew(driven, site, "shared", "shared", "window", "window")
    for round in range(10 if driven.engine == "chromium" else 3):
        await asyncio.gather(*(fly(tab, f"r{round}", ms=30) for tab in tabs))
        outcomes = [await landed(tab, f"r{round}") for tab in tabs]
        assert all(kind == "value" for kind, _ in outcomes)
        # A tab that asked when the others were through has a flight of its own; the page says when each began.
        froms = {(value["from"], value["at"]) for _, value in outcomes}
        assert await runs(*tabs) == len(froms), "each run was somebody's answer"
        for tab in tabs:
            await tab.evaluate("() => { window.ran = []; }")
    await quiet(*tabs)


@in_each_engine("hosts", list(MIXTURES.values()), list(MIXTURES), elsewhere="mixed")
async def test_an_error_reaches_all(driven: DrivenBrowser, site: Site, hosts: list[str]) -> None:
    tabs = await crew(driven, site, *hosts)
    await fly(tabs[0], error="no catalog today")
    await tabs[0].until("() => window.ran?.length === 1")
    for tab in tabs[1:]:
        await fly(tab)
    await queued(tabs[0], 1, 2, FLIGHT)
    await tabs[0].evaluate("() => flights.x.end()")
    told = {"name": "CatalogError", "message": "no catalog today"}
    assert {key: value for key, value in (await landed(tabs[0]))[1].items() if value} == told
    for tab in tabs[1:]:
        kind, error = await landed(tab)
        assert {key: value for key, value in error.items() if value} == {**told, "code": "flight-failed"}
    assert await runs(*tabs) == 1
    await quiet(*tabs)


@pytest.mark.parametrize("how", ["freeze", "crash", "close", "hang", "navigate", "leave"])
async def test_when_who_does_it_is_lost_another_does_it(browser: ChaosBrowser, site: Site, how: str) -> None:
    watched = WATCHED if how == "hang" else {}  # that nothing is heard is a reason only where the page hangs
    a, b, c, d = await crew(browser, site, "shared", "shared", "shared", "window", **watched)
    await fly(b)
    await b.until("() => window.ran?.length === 1")
    for tab in (c, d):
        await fly(tab, ms=50)
    await queued(a, 1, 2, FLIGHT)
    began = await a.evaluate("clock()")
    if how == "freeze":
        await b.freeze()
    elif how == "crash":
        await b.kill_process()
    elif how == "close":
        await b.close()
    elif how == "hang":
        await b.hang(20.0)
    elif how == "navigate":
        await b.navigate("/blank2")
    else:
        await b.evaluate("tab.leave('logout')")
    outcomes = [await landed(tab) for tab in (c, d)]
    assert outcomes[0] == outcomes[1] and outcomes[0][0] == "value"
    waited = outcomes[0][1]["at"] - began
    print(f"from {how} of who does it to the next one's result: {waited:.0f} ms")
    assert waited < (15_000 if how == "hang" else 6_000)
    assert await runs(c, d) == 1
    if how in ("freeze", "leave", "hang"):
        if how == "freeze":
            await b.thaw()
        kind, error = await landed(b, timeout=30)
        assert (kind, error["code"]) == ("error", "lock-lost")
    await queued(a, 0, 0, FLIGHT)
    await quiet(a, c, d)


async def test_work_that_was_lost_and_is_deaf_to_it_is_joined_by_nobody(browser: ChaosBrowser, site: Site) -> None:
    a, b = await crew(browser, site, "shared", "shared")
    await b.evaluate("""() => {
      window.old = tab.singleFlight("catalog", () => new Promise((resolve) => (window.go = resolve)))
        .catch((error) => error.code);
    }""")
    await b.until("() => !!window.go")
    await b.freeze()
    await queued(a, 0, 0, FLIGHT)
    await b.thaw()
    await fly(b, ms=10)
    kind, value = await landed(b)
    assert (kind, value["from"]) == ("value", await b.evaluate("tab.id"))
    await b.evaluate("() => go(1)")
    assert await b.evaluate("old") == "lock-lost"
    await quiet(a, b)


async def test_who_waits_goes_into_the_cache_and_asks_again(browser: ChaosBrowser, site: Site) -> None:
    a, b, c = await crew(browser, site, "shared", "shared", "window")
    await fly(a)
    await a.until("() => window.ran?.length === 1")
    await fly(b)
    await queued(c, 1, 1, FLIGHT)
    await b.navigate("/blank2")
    await queued(c, 1, 0, FLIGHT)
    assert await b.back(), await b.not_restored_reasons()
    await queued(c, 1, 1, FLIGHT)
    await a.evaluate("() => flights.x.end()")
    assert await landed(b) == await landed(a)
    await quiet(a, b, c)


async def test_who_gives_up_stops_it_only_when_nobody_else_in_the_page_waits(driven: DrivenBrowser, site: Site) -> None:
    a, b = await crew(driven, site, "shared", "window")
    await fly(a, "one")
    await a.until("() => window.ran?.length === 1")
    await a.evaluate("""() => {
      window.giveUp = new AbortController();
      window.gaveUp = tab.singleFlight("catalog", () => 1, { signal: giveUp.signal }).catch((error) => error.message);
    }""")
    await fly(b, timeoutMs=300)
    kind, error = await landed(b)
    assert (kind, error["code"]) == ("error", "lock-timeout")
    await queued(a, 1, 0, FLIGHT)
    await a.evaluate("() => giveUp.abort(new Error('enough'))")
    assert await a.evaluate("gaveUp") == "enough"
    assert await a.evaluate("() => flights.one.lock.signal.aborted") is False
    await a.evaluate("() => flights.one.end()")
    assert (await landed(a, "one"))[0] == "value"
    await fly(a, "two", timeoutMs=3_000)  # from its call on: it has begun by then
    assert (await landed(a, "two"))[1]["code"] == "lock-timeout"
    assert await a.evaluate("() => flights.two.lock.signal.aborted") is True
    await queued(a, 0, 0, FLIGHT)
    await quiet(a, b)


async def test_what_cannot_go_to_other_tabs_is_refused_by_its_place(driven: DrivenBrowser, site: Site) -> None:
    a, b = await crew(driven, site, "shared", "window")
    wrong = {
        "({ at: [1, { when: new Map() }] })": "result.at[1].when is of the kind Map",
        "'x'.repeat(199_995)": "200001 characters long as quoted JSON; at most 200000",
        "'\\u00e4'.repeat(40_000)": "240006 characters long",
    }
    for number, (value, told) in enumerate(wrong.items()):
        await a.evaluate(f"""() => {{
          window.never = new Promise((resolve) => (window.go = resolve));
          window.wrong = tab.singleFlight("catalog", () => never.then(() => {value}))
            .then(() => null, ({{ code, message }}) => [code, message]);
        }}""")
        await queued(a, 1, 0, FLIGHT)
        await fly(b, str(number))
        await queued(a, 1, 1, FLIGHT)
        await a.evaluate("() => go()")
        code, message = await a.evaluate("wrong")
        assert code == "not-cloneable" and told in message
        kind, error = await landed(b, str(number))
        assert (kind, error["code"], error["message"]) == ("error", "not-cloneable", message)
    assert await runs(b) == 0
    large = await a.evaluate("tab.singleFlight('large', () => 'x'.repeat(199_994)).then(({ length }) => length)")
    assert large == 199_994
    assert await a.evaluate("tab.singleFlight('nothing', () => {}).then((value) => value === undefined)")
    await quiet(a, b)
