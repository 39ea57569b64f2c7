"""Twenty tabs: a session that is restored at once, and what it costs when nothing happens. The figures are printed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from e2e.everywhere.measures import Table
from e2e.kit import DEFAULT_RESOURCE, Site, join, leaders, until

from tabhelm.testing import ChaosBrowser, ChaosTab

COUNT = 20
IDLE = 10.0
"""Seconds in which nothing happens, watched: two beats of a leader."""
CHANNEL = "tabhelm:e2e:v1"
DEFAULT_STALL_MS = 10_000
"""What an app has that sets nothing: it decides how often the engine pings its pages."""

_WATCH = """() => {
  // Who is said to lead, and since when this tab says so: the last change counts.
  window.told = { tab: null, at: 0 };
  const look = () => {
    const now = stands.job.election.leader();
    const id = now && now.epoch > 0 ? now.tabId : null;
    if (id !== told.tab) window.told = { tab: id, at: clock() };
  };
  tab.addEventListener("leader", look);
  stands.job.election.addEventListener("status", look);
  look();
}"""
_COUNT = """([name]) => {
  window.messages = 0;
  window.channel = new BroadcastChannel(name);
  channel.onmessage = () => { messages += 1; };
}"""


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that these processes have used."""
    ticks = 0
    for pid in pids:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


async def share_of_a_core(pids: Iterable[int], seconds: float) -> float:
    """Per cent of one core that the processes used in a while in which the test does nothing."""
    watched = list(pids)
    used, began = cpu_seconds(watched), time.monotonic()
    await asyncio.sleep(seconds)  # what is measured is this very time, in which nothing happens
    return 100 * (cpu_seconds(watched) - used) / (time.monotonic() - began)


async def processes(browser: ChaosBrowser, tabs: list[ChaosTab]) -> set[int]:
    return {await tab.pid() for tab in tabs} | await browser.worker_pids()


@pytest.mark.alone
@pytest.mark.timeout(240)
async def test_twenty_tabs_start_together_and_then_nothing_happens(
    browser: ChaosBrowser, site: Site, report_figure: Callable[[object], None]
) -> None:
    table = Table(f"{COUNT} tabs, one shared engine")
    tabs = [await site.open(browser) for _ in range(COUNT)]
    blank = await share_of_a_core(await processes(browser, tabs), IDLE / 2)

    async def start(tab: ChaosTab) -> float:
        await join(tab, stallAfterMs=DEFAULT_STALL_MS)
        ready = float(await tab.evaluate("() => clock()"))
        await site.stand(tab, fence=None)
        await tab.evaluate(_WATCH)
        return ready

    ready = await asyncio.gather(*(start(tab) for tab in tabs))

    async def agreed() -> list[float] | None:
        found = await leaders(tabs)
        told = [await tab.evaluate("() => told") for tab in tabs]
        same = len(found) == 1 and {each["tab"] for each in told} == {found[0].tab_id}
        return [float(each["at"]) for each in told] if same else None

    known = await until(agreed, f"one leader known to all {COUNT}", 60)
    took = (max(known) - max(ready)) / 1000
    detail = f"they were ready within {(max(ready) - min(ready)) / 1000:.2f} s of each other"
    table.add("one leader known to all after the last is ready", took, "s", 1.5, detail)
    assert took < 30

    # Whoever is in front, its visibility and its first beats are old news before the idle time begins.
    watcher = await site.open(browser)
    for tab in tabs:
        seen = f"() => tab.presence().tabs.length === {COUNT} && tab.presence().tabs.every(({{ visible }}) => !visible)"
        await tab.until(seen, what="every tab to be known as hidden")
    await watcher.evaluate(_COUNT, [CHANNEL])
    share = await share_of_a_core(await processes(browser, tabs), IDLE)
    messages = int(await watcher.evaluate("() => messages"))
    table.add("idle: channel messages a second", messages / IDLE, "/s", 2.0, f"{messages} in {IDLE:g} s, one engine")
    table.add("idle: share of one core", share - blank, "%", 2.0, f"{share:.1f} % joined, {blank:.1f} % blank")
    at = await leaders(tabs, DEFAULT_RESOURCE)
    assert len(at) == 1
    assert messages / IDLE < 20
    report_figure(table)
