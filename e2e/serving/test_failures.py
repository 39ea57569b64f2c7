"""Files that are missing, wrong or never come: every join ends, within ten seconds, and says what it got."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tabhelm.testing import ChaosBrowser, wait_for

from .pages import try_join, works
from .site import OddSite

USUAL = {"enginePatienceMs": 2_000}
"""What apps have that say nothing of it: how soon a join fails hangs on it."""
LIMIT_MS = 25_000  # patience adds up to nine seconds; a busy machine adds its own
WASM = "pyodide/pyodide.asm.wasm"
SNAPSHOT = "snapshot.bin.gz"
HOSTS = ("auto", pytest.param("shared", marks=pytest.mark.thorough), "window")


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("engine.mjs", "missing", "engine.mjs is answered with status 404 and text/plain"),
        ("engine.mjs", "page", "engine.mjs is answered with status 200 and text/html"),
        ("engine.mjs", "silent", "engine.mjs"),
        ("engine.mjs", "stuck", "engine.mjs"),
        (WASM, "missing", "pyodide.asm.wasm was answered with status 404"),
        (WASM, "page", "bytes of text/html came"),
        (WASM, "changed", "its SHA-384 is another"),
        (WASM, "silent", "pyodide.asm.wasm stalled: the server sent nothing for 6000 ms"),
        (WASM, "stuck", "pyodide.asm.wasm stalled: the server sent nothing for 6000 ms"),
        ("python_stdlib.zip", "short", "python_stdlib.zip is not the file that was built"),
    ],
)
async def test_a_join_that_cannot_succeed_ends_with_an_error_that_names_the_file(
    browser: ChaosBrowser, odd: OddSite, host: str, name: str, how: str, said: str
) -> None:
    odd.does.spoilt[name] = how
    tab = await browser.new_tab(f"{odd.url}/blank")
    result = await try_join(tab, host=host, **USUAL)
    print(f"\n{name} {how}, host {host}: {result.get('code')} after {result['ms']} ms: {result.get('message')}")
    assert (result.get("name"), result.get("code")) == ("TabhelmError", "no-engine"), result
    assert said in result["message"]
    assert odd.url in result["message"], "the whole URL"
    assert result["ms"] < LIMIT_MS
    if name != "engine.mjs":
        # When it is served again, the same page can join, as soon as the engine that failed has ended itself.
        odd.does.spoilt.clear()

        async def joins() -> bool:
            return (await try_join(tab, host=host, **USUAL)).get("from") == "snapshot"

        await wait_for(joins, 60, "the page to join once the file is there")


@pytest.mark.alone
@pytest.mark.parametrize("how", ["silent", "stuck"])
async def test_the_longest_of_them_ends_within_about_ten_seconds(browser: ChaosBrowser, odd: OddSite, how: str) -> None:
    odd.does.spoilt["engine.mjs"] = how
    tab = await browser.new_tab(f"{odd.url}/blank")
    result = await try_join(tab, **USUAL)
    assert result.get("code") == "no-engine" and result["ms"] < 12_000, result  # patience alone adds up to nine


@pytest.mark.parametrize("host", ["shared", pytest.param("window", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("how", ["missing", "page", "short", "changed", "silent", "stuck"])
async def test_a_snapshot_that_cannot_be_used_costs_time_alone(
    browser: ChaosBrowser, odd: OddSite, host: str, how: str
) -> None:
    odd.does.spoilt[SNAPSHOT] = how
    tab = await browser.new_tab(f"{odd.url}/blank")
    result = await try_join(tab, host=host, **USUAL)
    print(
        f"\nsnapshot {how}, host {host}: {result.get('from')} after {result['ms']} ms: {result.get('fallbackReason')}"
    )
    assert result.get("from") == "plain", result
    assert SNAPSHOT in result["fallbackReason"]
    assert result["ms"] < LIMIT_MS, "four seconds of patience and a plain boot"
    told = await tab.until("() => told.find(({ type }) => type === 'boot-fallback')", what="the event")
    assert told["reason"] == result["fallbackReason"]
    await works(tab)


@pytest.mark.parametrize("name", ["window.mjs", "explain.mjs"])
async def test_what_a_page_does_not_need_may_be_missing(browser: ChaosBrowser, odd: OddSite, name: str) -> None:
    odd.does.spoilt[name] = "missing"
    tab = await browser.new_tab(f"{odd.url}/blank")
    assert (await try_join(tab)).get("host") == "shared"


@pytest.mark.parametrize("base", ["/client", "/tabhelm"])
async def test_a_bundle_that_is_not_there_is_told_with_the_way_out(
    browser: ChaosBrowser, odd: OddSite, bundle: Path, tmp_path: Path, base: str
) -> None:
    """The client alone is served; or all of it, and the engine is looked for somewhere else."""
    shutil.copy(bundle / "tabhelm.mjs", tmp_path)
    odd.does.folders["client"] = tmp_path
    tab = await browser.new_tab(f"{odd.url}/blank")
    result = await try_join(tab, base, **USUAL, **({} if base == "/client" else {"engineUrl": "/client/engine.mjs"}))
    print(f"\n{base}: {result.get('code')} after {result['ms']} ms: {result.get('message')}")
    assert result.get("code") == "no-engine", result
    assert result["message"].startswith(f"no engine at {odd.url}/client/engine.mjs: "), result
    assert "is all of dist/ there? Set engineUrl or reload" in result["message"]
    assert result["ms"] < LIMIT_MS


async def test_a_worker_that_cannot_be_loaded_is_replaced_by_the_page_itself(
    browser: ChaosBrowser, odd: OddSite
) -> None:
    """Two engines without a sign of life, then one in the page: but for the worker its script never comes."""
    odd.does.script("/half/engine.mjs", "await new Promise(() => {});")
    odd.does.script("/half/window.mjs", 'export * from "/tabhelm/window.mjs";')
    tab = await browser.new_tab(f"{odd.url}/blank")
    result = await try_join(tab, engineUrl="/half/engine.mjs", **USUAL)
    print(f"\nmute workers: host {result.get('host')} after {result['ms']} ms: {result.get('reason')}")
    assert result.get("host") == "window", result
    assert result["ms"] < LIMIT_MS
    told = await tab.until("() => told.find(({ type }) => type === 'host-fallback')", what="the event")
    assert "said nothing for 2000 ms" in told["reason"]
    await works(tab)


async def test_tabs_that_live_are_told_when_the_next_engine_cannot_boot(browser: ChaosBrowser, odd: OddSite) -> None:
    odd.does.headers["cache-control"] = "no-store"
    tab = await browser.new_tab(f"{odd.url}/blank")
    await try_join(tab, host="shared", **USUAL)
    await works(tab)
    odd.does.spoilt[WASM] = "silent"
    (worker,) = await browser.shared_workers(url_contains="engine.mjs")
    await worker.evaluate("() => { setTimeout(() => self.close()); }")  # once it has answered
    await tab.until("() => tab.hostState.state === 'connecting'", what="the engine's death to be noticed")
    ended = await tab.evaluate(
        """async () => {
          const began = performance.now();
          const error = await tab.queue("mutations").enqueue({ kind: "late" }).catch((error) => error);
          return { code: error.code, message: error.message, ms: performance.now() - began };
        }"""
    )
    print(f"\nenqueue while no engine boots: {ended['code']} after {ended['ms']:.0f} ms: {ended['message']}")
    assert ended["code"] == "engine-lost" and WASM in ended["message"]
    assert ended["ms"] < LIMIT_MS
    assert await tab.evaluate("() => [tab.hostState.state, tab.engine, election.status.state]") == [
        "lost",
        None,
        "idle",
    ]
    odd.does.spoilt.clear()
    await tab.until("() => election.status.state === 'leading'", timeout=60, what="the tab to come back by itself")
    await works(tab)


async def test_two_tabs_that_join_a_failing_engine_both_end(browser: ChaosBrowser, odd: OddSite) -> None:
    odd.does.spoilt[WASM] = "silent"
    tabs = [await browser.new_tab(f"{odd.url}/blank") for _ in range(2)]
    results = await asyncio.gather(*(try_join(tab, **USUAL) for tab in tabs))
    for result in results:
        assert result.get("code") == "no-engine" and result["ms"] < LIMIT_MS, result
