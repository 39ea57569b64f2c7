"""What it costs in Chromium beyond what is measured in every engine (see e2e/everywhere), as one table.

Nothing fails for being slow, short of the absurd; the table marks what misses its goal.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable

import pytest
from e2e.everywhere.measures import PLAIN, Table, failover, spread
from e2e.kit import Site, join

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm.testing.pytest_plugin import LaunchBrowser

ROUNDS = 5


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
@pytest.mark.thorough  # the figures of every engine are in e2e/everywhere
@pytest.mark.timeout(400)
async def test_figures(launch_browser: LaunchBrowser, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(f"Figures of Chromium alone, in {ROUNDS} rounds")
    browser = await launch_browser()

    async def same() -> ChaosBrowser:
        return browser

    frozen = await failover(same, site, ChaosTab.freeze, ROUNDS, stamped=True)
    table.add("failover after a freeze", statistics.median(frozen), "ms", 100.0, spread(frozen))
    plain = await failover(same, site, ChaosTab.close, ROUNDS, stamped=True)
    table.add("failover after a close", statistics.median(plain), "ms", 60.0, spread(plain))
    fenced = await failover(same, site, ChaosTab.close, ROUNDS, stamped=True, fence="/api/operations")
    table.add("… with the barrier", statistics.median(fenced), "ms", None, spread(fenced))
    assert max(statistics.median(each) for each in (frozen, plain, fenced)) < 3_000
    await memory(launch_browser, site, table)
    with capsys.disabled():
        print(table)
