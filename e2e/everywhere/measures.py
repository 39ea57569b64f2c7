"""What is measured in every engine, beside what a page would have without us: a plain Web Lock.

Ratios within one run, since no two machines are alike.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from e2e.kit import WATCHED, Opens, Site, TabT, join, leader, now, until

from tabhelm.testing.driver import DrivenBrowser, DrivenTab

PLAIN = """async () => {
  const began = performance.now();
  const { loadPyodide } = await import("/tabhelm/pyodide/pyodide.mjs");
  window.pyodide = await loadPyodide({ indexURL: new URL("/tabhelm/pyodide/", location.href).href });
  pyodide.runPython("1 + 1");
  return performance.now() - began;
}"""
# A leader without us: a lock held in one page and let go on pagehide, queued for in another.
RAW_HOLD = """() => new Promise((held) => navigator.locks.request("raw", () => {
  held();
  return new Promise((release) => addEventListener("pagehide", () => release()));
}))"""
RAW_QUEUE = """() => {
  window.granted = null;
  navigator.locks.request("raw", () => { granted = clock(); return new Promise(() => {}); });
}"""
RAW_PENDING = "async () => (await navigator.locks.query()).pending.some(({ name }) => name === 'raw')"
# Its last word. A page of Firefox that is closed, and was alone in its process, has none: the process ends first.
STAMP = """() => {
  const channel = new BroadcastChannel("went");
  const stamp = () => channel.postMessage(clock());
  addEventListener("pagehide", stamp, { capture: true });
  document.addEventListener("freeze", stamp, { capture: true });
}"""

LISTEN = """() => {
  window.went = null;
  window.wentChannel = new BroadcastChannel("went");
  wentChannel.onmessage = ({ data }) => { went = data; };
}"""

Death = Callable[[TabT], Awaitable[object]]
Fresh = Callable[[], Awaitable[Opens[TabT]]]
"""A browser without tabs. Asked for again after each crash: not every driver survives one."""


@dataclass
class Table:
    """The figures, with their goals."""

    title: str
    lines: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, goal: float | None, detail: str) -> None:
        mark = "" if goal is None else "ok" if value <= goal else "OVER"
        wanted = "" if goal is None else f"≤ {goal:.4g} {unit}".strip()
        seen = f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
        self.lines.append((what, f"{seen} {unit}".strip(), f"{wanted:14} {mark}", detail))

    def __str__(self) -> str:
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        rows = [f"  {what:44} {value:>10}   {goal:20} {detail}" for what, value, goal, detail in self.lines]
        return "\n".join(["", f"{self.title} (medians; load {load} on {os.cpu_count()} processors):", *rows])


def spread(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f} ms"


async def plain_ms(browser: DrivenBrowser, site: Site) -> float:
    """A plain boot of the runtime in a page of its own."""
    tab = await site.open(browser)
    ms = float(await tab.evaluate(PLAIN, timeout=60))
    await tab.close()
    return ms


async def boots(browser: DrivenBrowser, site: Site, table: Table, rounds: int) -> float:
    """First and later tabs beside a plain boot; returns the median of the first tab's milliseconds."""
    plain, first, later, engine = [], [], [], []
    for number in range(rounds + 1):
        one = await plain_ms(browser, site)
        tabs = [await site.open(browser) for _ in range(3)]
        facts = [await join(tab, app=f"boot{number}") for tab in tabs]
        for tab in tabs:
            await tab.close()
        if number:  # the first round warms the browser's caches
            plain.append(one)
            first.append(facts[0]["ms"])
            engine.append(facts[0]["engine"]["bootMs"])
            later += [each["ms"] for each in facts[1:]]
    usual = statistics.median(first)
    ratio = usual / statistics.median(plain)
    table.add("plain loadPyodide in a page", statistics.median(plain), "ms", None, spread(plain))
    detail = f"{usual:.0f} ms ({spread(first)}), {statistics.median(engine):.0f} of them the engine's boot"
    table.add("first tab ready / plain loadPyodide", ratio, "", 0.45, detail)
    table.add("later tab ready", statistics.median(later), "ms", 60, spread(later))
    assert ratio < 1.5 and statistics.median(later) < 2_000
    return float(usual)


@asynccontextmanager
async def timed(old: TabT, new: DrivenTab, dies: Death[TabT], *, stamped: bool) -> AsyncIterator[list[float]]:
    """Let ``old`` die. Gives the Unix milliseconds of that: by its own last word if ``stamped``, else by ours."""
    if stamped:
        await new.evaluate(LISTEN)
        await old.evaluate(STAMP)
    else:
        await old.pid()
    moment = [time.time() * 1000]
    await dies(old)
    yield moment


async def went(tab: DrivenTab, moment: list[float], *, stamped: bool) -> float:
    return float(await tab.until("() => went")) if stamped else moment[0]


async def raw(fresh: Fresh[TabT], site: Site, dies: Death[TabT], rounds: int, *, stamped: bool) -> list[float]:
    """The same death of a page that holds a plain Web Lock."""
    found = []
    for _ in range(rounds):
        browser = await fresh()
        old, new = [await site.open(browser) for _ in range(2)]
        await old.evaluate(RAW_HOLD)
        await new.evaluate(RAW_QUEUE)
        await new.until(RAW_PENDING)
        async with timed(old, new, dies, stamped=stamped) as moment:
            granted = float(await new.until("() => granted"))
        found.append(granted - await went(new, moment, stamped=stamped))
        await new.close()
        await old.close()
    return found


async def failover(
    fresh: Fresh[TabT], site: Site, dies: Death[TabT], rounds: int, *, stamped: bool, fence: str | None = None
) -> list[float]:
    """From the death of a leader, whose process does not hold the engine, to the next leader's loop."""
    found = []
    for number in range(rounds):
        browser = await fresh()
        app = f"failover{number}"
        host, old, new = [await site.joined(browser, app=app, **WATCHED) for _ in range(3)]
        await site.stand(old, fence=fence)
        led = await leader([old])
        await site.stand(new, fence=fence)

        async def stands_by(tab: TabT = new) -> bool:
            at = await now(tab)
            return at is not None and at["status"].get("rank") == 0 and at["status"]["standby"]

        await until(stands_by, "the next in line")
        async with timed(old, new, dies, stamped=stamped) as moment:
            following = await leader([new], above=led.epoch)
        found.append(following.at - await went(new, moment, stamped=stamped))
        for tab in (old, new, host):
            await tab.close()
    return found


async def engine_crash(
    fresh: Callable[[], Awaitable[DrivenBrowser]], site: Site, rounds: int
) -> list[tuple[float, float]]:
    """From the kill of the process that holds engine and leader to the next leader's loop, in a new engine.

    Beside each, what the first tab of that very browser needed until it was ready.
    """
    found = []
    for number in range(rounds):
        browser = await fresh()
        old, new = [await site.open(browser) for _ in range(2)]
        first, _ = [await join(tab, app=f"crash{number}") for tab in (old, new)]
        await site.stand(old)
        led = await leader([old])
        await site.stand(new)
        assert await browser.worker_pids() == {await old.pid()}, "the first tab's process was to hold the engine"
        async with timed(old, new, lambda tab: tab.kill_process(), stamped=False) as moment:
            following = await leader([new], above=led.epoch)
        found.append((following.at - moment[0], first["ms"]))
        await new.close()
        await old.close()
    return found
