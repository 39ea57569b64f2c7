"""Locks of the app's own in real tabs: order, sharing, giving up, and what a page that stops does to them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
from e2e.kit import STALL_MS, WATCHED, Opens, Site, TabT, uncaught, until

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm.testing.driver import DrivenBrowser, DrivenTab

from .bodies import end, hold, inside, locks, outcome, queued, state
from .settings import in_each_engine

HOSTS = ["shared", "window"]


async def crew(browser: Opens[TabT], site: Site, count: int, host: str = "shared", **options: Any) -> list[TabT]:
    return [await site.joined(browser, host=host, **options) for _ in range(count)]


async def quiet(*tabs: DrivenTab) -> None:
    for tab in tabs:
        assert await uncaught(tab) == []


@in_each_engine("host", HOSTS, HOSTS, elsewhere="shared")
async def test_one_at_a_time_in_order_and_the_value_comes_back(driven: DrivenBrowser, site: Site, host: str) -> None:
    a, b, c = await crew(driven, site, 3, host)
    await hold(a)
    await inside(a)
    await hold(b)
    await queued(a, 1, 1)
    await hold(c)
    await queued(a, 1, 2)
    await end(a, value=42)
    assert await outcome(a) == ["value", 42]
    await inside(b)
    assert not (await state(c))["inside"]
    await end(b)
    await inside(c)
    await end(c)
    await queued(a, 0, 0)
    await quiet(a, b, c)


async def test_shared_and_exclusive(driven: DrivenBrowser, site: Site) -> None:
    a, b, c = await crew(driven, site, 3)
    await hold(a, mode="shared")
    await hold(b, mode="shared")
    await inside(a)
    await inside(b)
    await hold(c)
    await queued(a, 2, 1)
    await end(a)
    await end(b)
    await inside(c)
    await hold(a, "y", mode="shared", ifAvailable=True)
    assert (await outcome(a, "y"))[1]["code"] == "lock-unavailable"
    await end(c)
    await quiet(a, b, c)


@in_each_engine("host", HOSTS, HOSTS, elsewhere="shared")
async def test_a_timeout_names_the_holder_and_leaves_no_request(driven: DrivenBrowser, site: Site, host: str) -> None:
    a, b = await crew(driven, site, 2, host)
    await hold(a)
    began = (await inside(a))["began"]
    asked = await b.evaluate("() => clock()")
    await hold(b, timeoutMs=4_000)
    kind, error = await outcome(b)
    settled = (await state(b))["outcome"][2]
    assert kind == "error" and error["code"] == "lock-timeout" and error["name"] == "LockTimeout"
    assert error["holder"] == await a.evaluate("tab.id") and error["holder"] in error["message"]
    # Half a second for two pages' clocks and an engine's.
    assert asked - began + 4_000 - 500 <= error["heldForMs"] <= settled - began + 500
    await queued(a, 1, 0)
    # Its own tab, whoever asks in it:
    await hold(a, "nested", timeoutMs=300)
    assert "this tab itself has held it" in (await outcome(a, "nested"))[1]["message"]
    await end(a)
    await quiet(a, b)


async def test_an_abort_withdraws_the_request_at_once(driven: DrivenBrowser, site: Site) -> None:
    a, b = await crew(driven, site, 2)
    await hold(a)
    await inside(a)
    await b.evaluate("""() => {
      window.giveUp = new AbortController();
      window.gaveUp = tab.lock("case", () => "never", { signal: giveUp.signal }).catch((error) => error.message);
    }""")
    await queued(a, 1, 1)
    await b.evaluate("() => giveUp.abort(new Error('enough'))")
    assert await b.evaluate("gaveUp") == "enough"
    await queued(a, 1, 0)
    # In the very moment of the grant, ever again: nobody keeps it.
    for _ in range(20):
        await b.evaluate("""() => {
          window.giveUp = new AbortController();
          tab.lock("case", () => {}, { signal: giveUp.signal }).catch(() => {});
        }""")
        await queued(a, 1, 1)
        await b.evaluate("() => setTimeout(() => giveUp.abort(), Math.random() * 4)")
        await end(a)
        await hold(a)
        await inside(a)
    await end(a)
    await queued(a, 0, 0)
    await quiet(a, b)


@in_each_engine("host", HOSTS, HOSTS, elsewhere="shared")
async def test_an_exception_arrives_as_itself_and_frees_the_lock(driven: DrivenBrowser, site: Site, host: str) -> None:
    a, b = await crew(driven, site, 2, host)
    await hold(a)
    await inside(a)
    await hold(b)
    await queued(a, 1, 1)
    failed = await a.evaluate("() => { held.x.fail(); return clock(); }")
    assert await outcome(a) == ["error", {"name": "RangeError", "message": "mine"}]
    waited = (await inside(b))["began"] - failed
    print(f"from the throw to the next body, host {host}: {waited:.1f} ms")
    assert waited < 10_000
    same = await a.evaluate("""async () => {
      const mine = new RangeError("own");
      return await tab.lock("other", () => { throw mine; }).catch((error) => error === mine);
    }""")
    assert same is True
    await end(b)
    await quiet(a, b)


async def stop(tab: ChaosTab, how: str) -> None:
    if how == "freeze":
        await tab.freeze()
    elif how == "crash":
        await tab.kill_process()
    elif how == "close":
        await tab.close()
    elif how == "hang":
        await tab.hang(20.0)
    elif how == "navigate":
        await tab.navigate("/blank2")
    elif how == "leave":
        await tab.evaluate("tab.leave('logout')")


LIMIT_MS = {"hang": STALL_MS + 8_000}


@pytest.mark.parametrize("how", ["freeze", "crash", "close", "hang", "navigate", "leave"])
async def test_a_holder_that_stops_lets_go(browser: ChaosBrowser, site: Site, how: str) -> None:
    # The engine lives in the process of the first. That nothing is heard is a reason only where the page hangs.
    a, b, c = [await site.joined(browser, **given) for given in ({}, WATCHED if how == "hang" else {}, {})]
    await hold(b)
    await inside(b)
    await hold(c)
    await queued(a, 1, 1)
    began = await a.evaluate("clock()")
    await stop(b, how)
    waited = (await inside(c))["began"] - began
    print(f"from {how} of the holder to the next body: {waited:.0f} ms")
    assert waited < LIMIT_MS.get(how, 6_000)
    if how == "freeze":
        await b.thaw()
        assert (await outcome(b))[1]["code"] == "lock-lost"
        assert (await outcome(b))[1]["reason"] == "freeze"
    elif how == "hang":
        assert (await outcome(b, timeout=30))[1]["code"] == "lock-lost"
        assert (await outcome(b))[1]["reason"] in ("doubt", "stalled")
    elif how == "leave":
        assert (await outcome(b))[1] == {
            "name": "LockLost",
            "code": "lock-lost",
            "message": 'lock "e2e:v1:mutation:case" is held no more: logout',
            "reason": "logout",
        }
    assert (await state(c))["held"]
    await end(c)
    await quiet(a, c)


@pytest.mark.parametrize("how", ["freeze", "crash", "close", "hang", "navigate"])
async def test_a_waiter_that_stops_is_passed_over(browser: ChaosBrowser, site: Site, how: str) -> None:
    a, b, c = [await site.joined(browser, **given) for given in ({}, WATCHED if how == "hang" else {}, {})]
    await hold(a)
    await inside(a)
    await hold(b)
    await queued(a, 1, 1)
    await hold(c)
    await queued(a, 1, 2)
    await stop(b, how)
    if how != "hang":
        await queued(a, 1, 1)
    await end(a)
    await inside(c, timeout=20)
    if how == "freeze":
        await b.thaw()
        await queued(a, 1, 1)
        await end(c)
        await inside(b)
        await end(b)
        assert await outcome(b) == ["value", "done"]
    elif how == "hang":
        await end(c)
        await inside(b, timeout=30)
        await end(b)
    else:
        await end(c)
        await queued(a, 0, 0)
    await quiet(a, c)


@pytest.mark.parametrize("host", HOSTS)
async def test_the_back_forward_cache_lets_go_and_a_waiter_asks_again(
    browser: ChaosBrowser, site: Site, host: str
) -> None:
    a, b, c = await crew(browser, site, 3, host)
    await hold(b)
    await inside(b)
    await hold(c)
    await queued(a, 1, 1)
    await b.navigate("/blank2")
    await inside(c)
    assert await b.back(), await b.not_restored_reasons()
    assert (await outcome(b))[1]["reason"] == "pagehide"
    await hold(b, "again")
    await queued(a, 1, 1)
    await b.navigate("/blank2")  # now it waits
    await queued(a, 1, 0)
    assert await b.back(), await b.not_restored_reasons()
    await queued(a, 1, 1)
    await end(c)
    await inside(b, "again")
    await end(b, "again")
    await quiet(a, b, c)


@pytest.mark.parametrize("host", HOSTS)
async def test_a_frozen_holder_in_its_own_engine(browser: ChaosBrowser, site: Site, host: str) -> None:
    """The engine stops with its only page."""
    a = await site.joined(browser, host=host)
    await hold(a)
    await inside(a)
    b = await site.joined(browser, host="window")
    await hold(b)
    await queued(b, 1, 1)
    began = await b.evaluate("clock()")
    await a.freeze()
    waited = (await inside(b))["began"] - began
    assert waited < 15_000  # the page is hidden first
    await a.thaw()
    assert (await outcome(a))[1]["code"] == "lock-lost"
    await hold(a, "again")
    await queued(b, 1, 1)
    await end(b)
    await inside(a, "again")
    await end(a, "again")
    await quiet(a, b)


async def test_the_engine_dies_under_a_holder_and_a_waiter(browser: ChaosBrowser, site: Site) -> None:
    a, b, c = await crew(browser, site, 3)
    await hold(b)
    await inside(b)
    await hold(c)
    await queued(a, 1, 1)
    await a.kill_process()  # the maker of the engine
    kind, error = await outcome(b)
    assert (kind, error["code"]) == ("error", "lock-lost")
    await inside(c, timeout=30)
    await end(c)
    assert await outcome(c) == ["value", "done"]
    await quiet(b, c)


async def test_a_body_that_ignores_its_signal_keeps_nobody_from_the_lock(browser: ChaosBrowser, site: Site) -> None:
    a, b, c = await crew(browser, site, 3)
    await hold(b)
    await inside(b)
    await b.evaluate("() => { held.x.deaf = true; }")
    await hold(c)
    await queued(a, 1, 1)
    await b.freeze()
    await inside(c)
    await b.thaw()
    at = await state(b)
    assert at["inside"] and not at["held"] and at["outcome"] is None
    await end(b)
    assert (await outcome(b))[1]["code"] == "lock-lost"
    assert await b.evaluate("() => { try { held.x.lock.check(); } catch (error) { return error.reason; } }") == "freeze"
    await quiet(b, c)


async def test_options_are_checked(browser: ChaosBrowser, site: Site) -> None:
    (a,) = await crew(browser, site, 1)

    async def refused(code: str) -> str:
        return await a.evaluate(f"() => {code}.then(() => 'taken', ({{ name, message }}) => `${{name}}: ${{message}}`)")  # type: ignore[no-any-return]

    wrong: list[tuple[str, str]] = [
        ("tab.lock('a b', () => {})", 'TypeError: lock "a b"'),
        ("tab.lock('x')", "TypeError: the second argument of lock()"),
        ("tab.lock('x', () => {}, { mode: 'write' })", 'TypeError: mode "write"'),
        ("tab.lock('x', () => {}, { timeout: 1 })", 'TypeError: lock has no option "timeout"'),
        ("tab.lock('x', () => {}, { timeoutMs: -1 })", "TypeError: timeoutMs -1"),
        ("tab.lock('x', () => {}, { ifAvailable: true, timeoutMs: 1 })", "TypeError: ifAvailable never waits"),
        ("tab.lock('x', () => {}, { signal: 1 })", "TypeError: signal 1"),
        ("tab.lock('x', () => {}, { signal: AbortSignal.abort() })", "AbortError:"),
        ("tab.lock('x', () => {}, { scope: ':' })", 'TypeError: scope ":"'),
        ("tab.lock('x'.repeat(400), () => {}, { scope: 'y'.repeat(400) })", "InvalidName:"),
        ("tab.singleFlight('x', 1)", "TypeError: the second argument of singleFlight()"),
        ("tab.singleFlight('x', () => {}, { timeoutMs: 0 })", "TypeError: timeoutMs 0"),
    ]
    for code, told in wrong:
        assert (await refused(code)).startswith(told), code
    assert await refused("tab.lock('x', (lock) => { lock.check(); return lock.held; }, { scope: 'user:1' })") == "taken"
    await a.evaluate("tab.leave()")
    assert await refused("tab.lock('x', () => {})") == "TabhelmError: this tab has left; call join() again"
    await quiet(a)


async def test_a_free_lock_is_had_within_no_time(browser: ChaosBrowser, site: Site) -> None:
    a, b = await crew(browser, site, 2)
    for ms in (0, 1):
        await hold(a, str(ms), timeoutMs=ms)
        await inside(a, str(ms))
        await hold(b, str(ms), timeoutMs=ms)
        assert (await outcome(b, str(ms)))[1]["code"] == "lock-timeout"
        await end(a, str(ms))
        assert await outcome(a, str(ms)) == ["value", "done"]
    await quiet(a, b)


async def test_two_copies_of_the_client_get_errors_of_their_own(browser: ChaosBrowser, site: Site) -> None:
    """They lie at two URLs, and share the file with what few pages use."""
    (a,) = await crew(browser, site, 1)
    mine = await a.evaluate("""async () => {
      const [one, other] = [await import("/tabhelm/tabhelm.mjs"), await import("/tabhelm/tabhelm.mjs?other")];
      const tabs = await Promise.all([one, other].map((m) => m.join({ app: "copies" })));
      const refused = (tab) => tab.lock("x", () => {}, { ifAvailable: true }).catch((error) => error);
      const told = await tabs[0].lock("x", () => Promise.all([...tabs, ...tabs].map(refused)));
      for (const tab of tabs) tab.leave();
      return told.map((error, n) => [error.code, error instanceof (n % 2 ? other : one).TabhelmError]);
    }""")
    assert mine == [["lock-unavailable", True]] * 4
    await quiet(a)


async def test_figures(browser: ChaosBrowser, site: Site, report_figure: Callable[[object], None]) -> None:
    """What a lock costs beside the browser's own: told."""
    a, b = await crew(browser, site, 2)
    measured: dict[str, Any] = await a.evaluate("""async () => {
      const time = async (work) => {
        const took = [];
        for (let i = 0; i < 200; i++) {
          const began = performance.now();
          await work();
          took.push(performance.now() - began);
        }
        return took;
      };
      await tab.lock("figures", () => {});
      return {
        ours: await time(() => tab.lock("figures", () => {})),
        raw: await time(() => navigator.locks.request("figures", () => {})),
        flight: await time(() => tab.singleFlight("figures", () => 1)),
      };
    }""")
    for what, took in measured.items():
        report_figure(f"a lock, {what}: p50 {statistics.median(took):.2f} ms, p95 {sorted(took)[190]:.2f} ms")
    assert statistics.median(measured["ours"]) < 100
    assert await locks(b) == {"held": 0, "pending": 0}

    async def empty() -> bool:
        return await b.evaluate(  # type: ignore[no-any-return]
            "async () => !(await navigator.locks.query()).held.some(({ name }) => name.endsWith(':figures'))"
        )

    await until(empty, "nothing of the measurement to be held")
