"""Shared workers: found, asked, cut off and killed from outside."""

from __future__ import annotations

import pytest

from tabhelm.testing import ChaosBrowser, ChaosError, SharedWorkerHandle, TabUnresponsive, wait_for

from .page_scripts import CONNECT


async def only_worker(browser: ChaosBrowser) -> SharedWorkerHandle:
    workers = await browser.shared_workers(name="echo")
    assert len(workers) == 1
    return workers[0]


async def test_the_worker_lives_in_the_first_tabs_renderer_and_dies_with_it(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    b = await browser.new_tab(site)
    assert await browser.shared_workers() == []
    assert (await a.evaluate(CONNECT))["tabs"] == 1
    assert (await b.evaluate(CONNECT))["tabs"] == 2
    worker = await only_worker(browser)
    assert (worker.url, worker.name) == (f"{site}/worker.js", "echo")
    assert await worker.pid() == await a.pid() != await b.pid()
    assert await worker.memory_pss() == pytest.approx(await a.memory_pss(), rel=0.5)
    await worker.kill_process()
    await wait_for(lambda: a.gone, 10, "the creator's tab to die with the worker")
    assert not await worker.alive()
    with pytest.raises(ChaosError, match="'echo'"):
        await worker.evaluate("1")
    assert (await b.evaluate(CONNECT))["tabs"] == 1  # a new one, in its own renderer now
    assert await (await only_worker(browser)).pid() == await b.pid()


async def test_the_worker_outlives_its_creators_tab(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    b = await browser.new_tab(site)
    await a.evaluate(CONNECT)
    await b.evaluate(CONNECT)
    pid = await a.pid()
    await a.close()
    worker = await only_worker(browser)
    assert await worker.pid() == pid
    await b.evaluate("() => port.postMessage('still there?')")
    await b.until("() => answer.echo === 'still there?'", 10)


async def test_code_runs_in_the_worker(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    await a.evaluate(CONNECT)
    worker = await only_worker(browser)
    assert await worker.evaluate("tabs") == 1
    assert await worker.evaluate("async ({ by }) => { tabs += by; return { tabs, name }; }", {"by": 4}) == {
        "tabs": 5,
        "name": "echo",
    }
    with pytest.raises(ChaosError, match="TypeError: no such luck"):
        await worker.evaluate("() => { throw new TypeError('no such luck'); }")
    assert await worker.console() == ["log: worker up"]


async def test_a_hung_worker_is_silent_while_its_tabs_go_on(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    await a.evaluate(CONNECT)
    worker = await only_worker(browser)
    await worker.hang(6)
    with pytest.raises(TabUnresponsive):
        await worker.evaluate("1", timeout=1)
    assert await a.evaluate("() => 1", timeout=4) == 1
    assert await worker.evaluate("1") == 1


async def test_tabs_and_worker_have_their_own_network_switch(browser: ChaosBrowser, site: str) -> None:
    a = await browser.new_tab(site)
    b = await browser.new_tab(site)
    await a.evaluate(CONNECT)
    worker = await only_worker(browser)
    network = "() => fetch('/x').then((r) => r.status, () => 'failed').then((how) => [navigator.onLine, how])"
    await a.offline(True)
    assert await a.evaluate(network) == [False, "failed"]
    assert await b.evaluate(network) == [True, 200]
    # Requests are cut for the tab alone, but navigator.onLine for its whole renderer, where the worker lives too.
    assert await worker.evaluate(network) == [False, 200]
    await a.offline(False)
    assert await a.evaluate(network) == await worker.evaluate(network) == [True, 200]
    await worker.offline(True)
    assert await worker.evaluate(network) == [False, "failed"]
    assert await a.evaluate(network) == [False, 200]
    assert await b.evaluate(network) == [True, 200]
    await worker.offline(False)
    assert await a.evaluate(network) == await worker.evaluate(network) == [True, 200]
