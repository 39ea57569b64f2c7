"""Elections beside a raw lock with a strict transaction, in the same page and by turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from e2e.bench.rows import Row
from e2e.kit import Site, join
from e2e.python_pages.kit import PythonPage

from tabhelm.testing import ChaosBrowser, ChaosTab

ROUNDS = 40
WARM = 8
GOAL = 6.0
"""An election from Python costs at most so many raw locks with a strict transaction."""
_OTHER = "raw lock + transaction"

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


async def python_page(tab: ChaosTab, site: Site, bundle: Path) -> None:
    """A page that runs its own Python, with this folder's ``inside.py`` as ``window.bench``."""
    place: Any = SimpleNamespace(url=site.url, wheel=f"/tabhelm/{next(bundle.glob('tabhelm-*.whl')).name}")
    await PythonPage.boot(tab, place)
    await tab.evaluate(_INSTALL, Path(__file__).with_name("inside.py").read_text(encoding="utf-8"))


async def from_python(tab: ChaosTab, site: Site, bundle: Path, rounds: int = ROUNDS, warm: int = WARM) -> Row:
    """An election of a page that runs its own Python."""
    await python_page(tab, site, bundle)
    await tab.evaluate(_RAW)
    found = json.loads(
        await tab.evaluate("([rounds, warm]) => bench.elections(rounds, warm)", [rounds, warm], timeout=300)
    )
    return Row.of("election from Python (a page's own)", found["ours"], found["raw"], other=_OTHER, at_most=GOAL)


async def from_a_page(tab: ChaosTab, host: str, rounds: int = ROUNDS, warm: int = WARM) -> Row:
    """An election of a page script over its engine."""
    await join(tab, app="bench", host=host, stallAfterMs=10_000)
    await tab.evaluate(_RAW)
    found = await tab.evaluate(_OF_PAGE, [rounds, warm], timeout=300)
    return Row.of(f"election of a page script ({host} host)", found["ours"], found["raw"], other=_OTHER)


async def election_rows(site: Site, bundle: Path, say: Callable[[str], None]) -> list[Row]:
    """Each in a fresh browser: nothing of one is left when the next begins."""
    rows = []
    say("elections from Python")
    async with ChaosBrowser.launch() as browser:
        rows.append(await from_python(await site.open(browser), site, bundle))
    for host in ("window", "shared"):
        say(f"elections of a page script, {host} host")
        async with ChaosBrowser.launch() as browser:
            rows.append(await from_a_page(await site.open(browser), host))
    return rows
