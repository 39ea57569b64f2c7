"""Benchmarks beside what a page would have without tabhelm, in the same page and by turns: ``python build.py bench``.

A table on standard error and one JSON object on standard output: ``{"rows": [{"name", "ours_ms", "raw_ms", "ratio",
"goal", "rounds"}], …}``, medians. Absolute times are those of one machine; what is worth comparing is the ratio.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from e2e.kit import Site, join
from e2e.python_pages.kit import PythonPage

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm_build.demo_server import DemoServer

ROUNDS = 40
WARM = 8
GOAL = 6.0
"""An election from Python costs at most so many raw locks with a strict transaction."""

# What one would write oneself for a leader with an epoch: the lock, and a counter that is durable before it is used.
_RAW = """async () => {
  const database = await new Promise((resolve, reject) => {
    const request = indexedDB.open("raw", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("epochs");
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  const issue = () => new Promise((resolve, reject) => {
    const transaction = database.transaction("epochs", "readwrite", { durability: "strict" });
    const epochs = transaction.objectStore("epochs");
    epochs.get("job").onsuccess = ({ target }) => epochs.put((target.result ?? 0) + 1, "job");
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });
  window.raw = async (after = 0) => {
    // Not before whoever asked has nothing more to do on this thread: Python goes on for a while after a call.
    await new Promise((begin) => setTimeout(begin, after));
    const began = performance.now();
    await navigator.locks.request("raw:job", issue);
    return performance.now() - began;
  };
}"""
_INSTALL = """(text) => {
  pyodide.FS.writeFile("/home/pyodide/bench_inside.py", text);
  window.bench = pyodide.pyimport("bench_inside");
}"""
_OF_PAGE = """async ([rounds, warm]) => {
  const found = { ours: [], raw: [] };
  const pause = () => new Promise((over) => setTimeout(over, 200));
  for (let number = 0; number < rounds + warm; number += 1) {
    await pause();
    const began = performance.now();
    let election;
    await new Promise((leads) => {
      election = tab.lead("job", ({ signal }) => {
        leads();
        return new Promise((end) => signal.addEventListener("abort", end, { once: true }));
      });
    });
    election.stop("enough");
    await election.stopped;
    const ours = performance.now() - began;
    const raw = await window.raw(200);
    if (number >= warm) { found.ours.push(ours); found.raw.push(raw); }
  }
  return found;
}"""


@dataclass(frozen=True, slots=True)
class Row:
    """One benchmark: medians in milliseconds, and what they are to each other."""

    name: str
    ours_ms: float
    raw_ms: float
    ratio: float
    goal: float | None
    rounds: int

    @classmethod
    def of(cls, name: str, found: dict[str, Sequence[float]], goal: float | None = None) -> Row:
        ours, raw = statistics.median(found["ours"]), statistics.median(found["raw"])
        return cls(name, round(ours, 3), round(raw, 3), round(ours / raw, 2), goal, len(found["ours"]))

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"goal ≤ {self.goal:g}  {'ok' if self.ratio <= self.goal else 'OVER'}"
        return f"  {self.name:46} {self.ours_ms:8.2f} ms {self.raw_ms:8.2f} ms {self.ratio:7.2f}   {goal}"


async def python_page(tab: ChaosTab, site: Site, bundle: Path, rounds: int = ROUNDS, warm: int = WARM) -> Row:
    """An election of a page that runs its own Python."""
    place: Any = SimpleNamespace(url=site.url, wheel=f"/tabhelm/{next(bundle.glob('tabhelm-*.whl')).name}")
    await PythonPage.boot(tab, place)
    await tab.evaluate(_RAW)
    await tab.evaluate(_INSTALL, Path(__file__).with_name("inside.py").read_text(encoding="utf-8"))
    text = await tab.evaluate("([rounds, warm]) => bench.elections(rounds, warm)", [rounds, warm], timeout=300)
    return Row.of("election from Python (a page's own)", json.loads(text), GOAL)


async def joined_page(tab: ChaosTab, host: str, rounds: int = ROUNDS, warm: int = WARM) -> Row:
    """An election of a page script over its engine."""
    await join(tab, app="bench", host=host, stallAfterMs=10_000)
    await tab.evaluate(_RAW)
    found = await tab.evaluate(_OF_PAGE, [rounds, warm], timeout=300)
    return Row.of(f"election of a page script ({host} host)", found)


async def run(bundle: Path) -> list[Row]:
    """All benchmarks, each in a fresh browser: nothing of one is left when the next begins."""
    rows = []
    with DemoServer(bundle) as server:
        site = Site(server)
        async with ChaosBrowser.launch() as browser:
            rows.append(await python_page(await site.open(browser), site, bundle))
        for host in ("window", "shared"):
            async with ChaosBrowser.launch() as browser:
                rows.append(await joined_page(await site.open(browser), host))
    return rows


def main() -> None:
    bundle = Path(os.environ.get("TABHELM_DIST") or Path(__file__).resolve().parents[2] / "dist")
    rows = asyncio.run(run(bundle))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"\nbeside a raw lock with a strict transaction, by turns in one page (medians; load {load}):", file=sys.stderr
    )
    print(f"  {'':46} {'tabhelm':>11} {'raw':>11} {'ratio':>7}", file=sys.stderr)
    for row in rows:
        print(row, file=sys.stderr)
    print(json.dumps({"rows": [asdict(row) for row in rows], "load": os.getloadavg(), "processors": os.cpu_count()}))


if __name__ == "__main__":
    main()
