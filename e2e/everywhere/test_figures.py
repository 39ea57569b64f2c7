"""What it costs in each engine, as one table each.

Nothing fails for being slow, short of the absurd; the table marks what misses its goal.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
from e2e.everywhere.measures import Table, boots, engine_crash, failover, raw, spread
from e2e.kit import STALL_MS, Site

from tabhelm.testing.driver import DrivenBrowser, DrivenTab, Engine
from tabhelm.testing.pytest_engines import EnginePool

ROUNDS = 3


async def _away(tab: DrivenTab) -> None:
    await tab.navigate("/blank2")


@pytest.mark.alone
@pytest.mark.thorough  # it measures: that these failovers happen at all is tested in test_leading
@pytest.mark.timeout(600)
async def test_figures(
    driven: DrivenBrowser, engine: Engine, engine_pool: EnginePool, site: Site, report_figure: Callable[[object], None]
) -> None:
    async def same() -> DrivenBrowser:
        return driven

    async def fresh() -> DrivenBrowser:
        return await engine_pool.get(engine)

    async def new() -> DrivenBrowser:
        await engine_pool.end(engine)
        return await engine_pool.get(engine)

    # In WebKit an engine that outlived its maker's page may end with the next page that is closed.
    alone, stays = (new, fresh) if engine == "webkit" else (same, same)
    table = Table(f"Figures of {driven.version}")
    await boots(driven, site, table, ROUNDS)
    for what, dies, browser, stamped in (
        ("close", lambda tab: tab.close(), alone, engine != "firefox"),
        ("navigation", _away, stays, True),
        ("crash", lambda tab: tab.kill_process(), fresh, False),
    ):
        beside = await raw(browser, site, dies, ROUNDS, stamped=stamped)
        ours = await failover(browser, site, dies, ROUNDS, stamped=stamped)
        detail = f"{spread(ours)}; the lock alone: {statistics.median(beside):.1f} ms ({spread(beside)})"
        ratio = statistics.median(ours) / max(statistics.median(beside), 1.0)
        table.add(f"failover after a {what}", statistics.median(ours), "ms", None, detail)
        table.add("… / a raw Web Lock let go on pagehide", ratio, "", None, "")
        assert statistics.median(ours) < 3_000
    hung = await failover(fresh, site, lambda tab: tab.hang(STALL_MS / 1000 + 3), ROUNDS, stamped=False)
    detail = f"{spread(hung)}; stallAfterMs is {STALL_MS}; a raw Web Lock stays as long as the page hangs"
    table.add("failover after a hang / stallAfterMs", statistics.median(hung) / STALL_MS, "", 1.5, detail)
    crashed = await engine_crash(new, site, ROUNDS)
    ratio = statistics.median(ms / first for ms, first in crashed)
    table.add("failover after an engine crash / first tab", ratio, "", 1.5, spread([ms for ms, _ in crashed]))
    assert ratio < 15
    report_figure(table)
