"""``auto``: a shared engine where one can be had, else one in the page, and an event that says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import Site, join, leader, stands_by, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm_build.demo_server import DemoServer

from .tabs import joined, roster

# What browsers do that have no SharedWorker, or will not start one, or start one that never says a word.
MISSING = "() => { delete window.SharedWorker; }"
THROWS = """() => {
  window.SharedWorker = class { constructor() { throw new DOMException("no workers here", "SecurityError"); } };
}"""
MUTE = """() => {
  window.started = [];
  window.SharedWorker = class {
    port = new MessageChannel().port1;
    constructor(_, { name }) { started.push(name); }
  };
}"""
FAILS = """() => {
  window.SharedWorker = class extends EventTarget {
    port = new MessageChannel().port1;
    constructor() {
      super();
      setTimeout(() => this.onerror(new Event("error", { cancelable: true })));
    }
  };
}"""


async def _falls_back(tab: ChaosTab, fault: str, **options: Any) -> str:
    """Join with ``auto`` under a fault; returns the reason that the page was told."""
    await tab.evaluate(fault)
    await join(tab, host="auto", **options)
    assert await tab.evaluate("() => tab.host") == "window"
    event = await tab.until("() => events.find(({ type }) => type === 'host-fallback')", what="the event")
    state = await tab.evaluate("() => tab.hostState")
    assert state["state"] == "connected" and state["reason"] == event["reason"]
    return str(event["reason"])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (MISSING, "this browser has no SharedWorker"),
        (THROWS, "could not be started: no workers here"),
        (MUTE, "said nothing for 1500 ms (greeting)"),
        (FAILS, "its script did not load or failed at once"),
    ],
    ids=["missing", "throws", "mute", "fails"],
)
async def test_where_no_shared_engine_can_be_had(browser: ChaosBrowser, site: Site, fault: str, reason: str) -> None:
    other = await joined(browser, site, "shared")
    await site.stand(other)
    old = await leader([other])
    tab = await site.open(browser)
    assert reason in await _falls_back(tab, fault, enginePatienceMs=1_500)
    await site.stand(tab)
    await stands_by(tab)
    await roster(other, 2)
    await other.close()
    await leader([tab], above=old.epoch)
    assert await write(tab, "one") == 200
    # It stays where its interpreter is, and says so only once.
    assert await tab.bfcache_round_trip("/blank2"), await tab.not_restored_reasons()
    await tab.until("() => tab.hostState.state === 'connected'", what="joined again")
    assert await tab.evaluate("() => [tab.host, events.filter(({ type }) => type === 'host-fallback').length]") == [
        "window",
        1,
    ]


async def test_two_engines_are_tried_and_no_more(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    await _falls_back(tab, MUTE, enginePatienceMs=500)
    names = await tab.evaluate("() => started")
    assert len(names) == 2 and names[1] == f"{names[0]}#2"


async def test_where_a_shared_engine_can_be_had_nothing_is_told(browser: ChaosBrowser, site: Site) -> None:
    tab = await joined(browser, site, "auto")
    assert await tab.evaluate("() => [tab.host, tab.hostState.reason]") == ["shared", "joined"]
    assert await tab.evaluate("() => events.filter(({ type }) => type === 'host-fallback')") == []


async def test_shared_is_shared_or_nothing(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    await tab.evaluate(MISSING)
    attempt = """async () => {
      await import("/tabhelm/explain.mjs"); // the client waits for that no longer than a second
      const { join } = await import("/tabhelm/tabhelm.mjs");
      return join({ app: "e2e", host: "shared" }).catch(({ code, message }) => [code, message]);
    }"""
    code, text = await tab.evaluate(attempt)
    assert code == "no-host" and '"window"' in text


@pytest.fixture
def without_snapshot(bundle: Path, tmp_path: Path) -> Iterator[Site]:
    copy = tmp_path / "dist"
    shutil.copytree(bundle, copy)
    (copy / "snapshot.bin.gz").write_bytes(b"not what was built")
    with DemoServer(copy) as server:
        yield Site(server)


async def test_an_engine_that_boots_plainly(browser: ChaosBrowser, without_snapshot: Site) -> None:
    site = without_snapshot
    tab = await joined(browser, site)
    engine = await tab.evaluate("() => tab.engine")
    assert engine["from"] == "plain" and "snapshot" in engine["fallbackReason"]
    await tab.until("() => events.some(({ type }) => type === 'boot-fallback')", what="the event")
    await site.stand(tab)
    old = await leader([tab])
    assert await write(tab, "one") == 200
    assert await tab.bfcache_round_trip("/blank2"), await tab.not_restored_reasons()
    await leader([tab], above=old.epoch)
    assert await write(tab, "two") == 200


async def test_an_interpreter_that_cannot_be_had_is_told_and_not_waited_for(
    browser: ChaosBrowser, bundle: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "dist"
    shutil.copytree(bundle, copy)
    (copy / "pyodide" / "pyodide.asm.wasm").unlink()
    attempt = """async () => {
      const { join } = await import("/tabhelm/tabhelm.mjs");
      const began = performance.now();
      const [code, message] = await join({ app: "e2e", host: "window" }).catch(({ code, message }) => [code, message]);
      return { code, message, ms: performance.now() - began };
    }"""
    with DemoServer(copy) as server:
        site = Site(server)
        tab = await site.open(browser)
        told = await tab.evaluate(attempt)
        assert told["code"] == "no-engine" and "pyodide.asm.wasm" in told["message"] and "404" in told["message"]
        assert told["ms"] < 30_000
        locks = "async () => Object.values(await navigator.locks.query()).flat().length"

        async def nothing_left() -> bool:
            return await tab.evaluate(locks) == 0

        await until(nothing_left, "who could not join to hold nothing")
        # What comes back is found by the next attempt, in the same page.
        shutil.copyfile(bundle / "pyodide" / "pyodide.asm.wasm", copy / "pyodide" / "pyodide.asm.wasm")
        await join(tab, host="window")
        await site.stand(tab)
        await leader([tab])
