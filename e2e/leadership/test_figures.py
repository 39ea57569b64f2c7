"""What the main job costs in Chromium, as one table that every run of the tests shows.

Nothing fails for being slow, short of the absurd; the table marks what misses its goal. All engines are measured in
e2e/everywhere, by the thorough run.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable

import pytest
from e2e.everywhere.measures import PLAIN, Table, boots, engine_crash, failover, raw, spread
from e2e.kit import Site, join

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm.testing.pytest_plugin import LaunchBrowser

ROUNDS = 5
BOOTS = 3


async def memory(launch: LaunchBrowser, site: Site, table: Table) -> None:
    """Four tabs that share an engine beside four that each boot Pyodide."""

    async def megabytes(fill: Callable[[ChaosTab], Awaitable[object]]) -> float:
        browser = await launch()
        tabs = [await site.open(browser) for _ in range(4)]
        for tab in tabs:
            await fill(tab)
        pids = {await tab.pid() for tab in tabs}
        pids |= {await worker.pid() for worker in await browser.shared_workers()}
        size = {pid: 0 for pid in pids}
        for tab in tabs:
            size[await tab.pid()] = await tab.memory_pss()
        for worker in await browser.shared_workers():
            size[await worker.pid()] = await worker.memory_pss()
        return sum(size.values()) / 2**20

    shared = await megabytes(join)
    each = await megabytes(lambda tab: tab.evaluate(PLAIN, timeout=60))
    detail = f"{shared:.0f} MiB and {each:.0f} MiB of renderers"
    table.add("memory of 4 joined / 4 with Pyodide each", shared / each, "", 0.5, detail)
    assert shared / each < 0.8


@pytest.mark.alone
@pytest.mark.timeout(600)  # under a minute, if nothing runs beside it
async def test_figures(launch_browser: LaunchBrowser, site: Site, report_figure: Callable[[object], None]) -> None:
    table = Table(f"Figures of Chromium, {BOOTS} rounds of boots and {ROUNDS} of each failover")
    browser = await launch_browser()

    async def same() -> ChaosBrowser:
        return browser

    await boots(browser, site, table, BOOTS)
    for what, dies, goal in (("close", ChaosTab.close, 60.0), ("freeze", ChaosTab.freeze, 100.0)):
        took = await failover(same, site, dies, ROUNDS, stamped=True)
        table.add(f"failover after a {what}", statistics.median(took), "ms", goal, spread(took))
        assert statistics.median(took) < 3_000
    beside = await raw(same, site, ChaosTab.kill_process, ROUNDS, stamped=False)
    took = await failover(same, site, ChaosTab.kill_process, ROUNDS, stamped=False)
    more = statistics.median(took) - statistics.median(beside)
    detail = f"{statistics.median(took):.0f} ms ({spread(took)}); the lock alone: {statistics.median(beside):.0f} ms"
    table.add("failover after a crash, more than a raw lock", more, "ms", 50.0, f"{detail} ({spread(beside)})")
    assert more < 3_000
    crashed = await engine_crash(launch_browser, site, ROUNDS)
    ratio = statistics.median(ms / first for ms, first in crashed)
    table.add("failover after an engine crash / first tab", ratio, "", 1.5, spread([ms for ms, _ in crashed]))
    assert ratio < 15
    await memory(launch_browser, site, table)
    report_figure(table)
