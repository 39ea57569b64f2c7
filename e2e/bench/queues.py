"""The queue beside a hand-written one and beside the queue libraries: same receiver, origin and payloads, by turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.bench.elections import python_page
from e2e.bench.peers.build import peer_scripts
from e2e.bench.rows import Row
from e2e.kit import Site

from tabhelm.testing import ChaosBrowser, ChaosTab

BURST = 1_000
FLUSH = 10_000
BATCH = 100
MANY = 100_000
PEERS = {
    "workbox-background-sync": ("workbox", 400, {}),
    "TanStack offline transactions": ("tanstack", 400, {}),
    "idb, by hand, 1 a request": ("idb", 400, {"batch": 1}),
    "idb, by hand, 25 a request": ("idb", 4_000, {"batch": 25}),
}
"""Script, how many operations (rates are compared; what sends one by one gets fewer), and options. The first two are
queue libraries; idb wraps IndexedDB, and the loop over it is a hand-written one."""
_LIBRARIES = 2
_PAGE = Path(__file__).with_name("queue_page.mjs").read_text(encoding="utf-8")
Say = Callable[[str], None]


async def _joined(browser: ChaosBrowser, site: Site) -> ChaosTab:
    tab = await site.joined(browser, app="bench", stallAfterMs=30_000)
    await tab.evaluate(_PAGE)
    return tab


async def enqueue_rows(site: Site, say: Say, *, rounds: int = 15, singles: int = 100, warm: int = 3) -> list[Row]:
    """One call with 1,000 operations, and one call after the other."""
    async with ChaosBrowser.launch() as browser:
        tab = await _joined(browser, site)
        say(f"enqueueing {BURST:,} in one call")
        burst = await tab.evaluate("(given) => benchQueue.burst(...given)", [BURST, rounds, warm], timeout=300)
        say("enqueueing one at a time")
        one = await tab.evaluate("(given) => benchQueue.single(...given)", [singles, rounds // 2 + 1, 1], timeout=300)
    other = "a strict transaction"
    return [
        Row.of(f"enqueue {BURST:,} in one call", burst["ours"], burst["raw"], other=other, at_most=3.0),
        Row.of("enqueue one, awaited", one["ours"], one["raw"], other=other, at_most=4.0),
    ]


async def flush_rows(site: Site, say: Say, *, count: int = FLUSH, rounds: int = 3, part: float = 1.0) -> list[Row]:
    """10,000 operations to the demo's receiver, in batches of 100; what only sends one by one gets fewer."""
    scripts = peer_scripts()
    ours, raw = [], []
    peers: dict[str, list[float]] = {name: [] for name in PEERS}
    async with ChaosBrowser.launch() as browser:
        filler = await _joined(browser, site)
        for number in range(rounds):
            say(f"flushing {count:,} operations, round {number + 1} of {rounds}")
            name = f"flush-{number}"
            await filler.evaluate("(given) => benchQueue.fill(...given)", [name, count], timeout=120)
            sender = await _joined(browser, site)
            took = await sender.evaluate("(name) => benchQueue.empty(name)", name, timeout=120)
            ours.append(count / took * 1000)
            await sender.evaluate("(given) => benchQueue.fillByHand(...given)", [name, count], timeout=120)
            took = await sender.evaluate("(batch) => benchQueue.emptyByHand(batch)", BATCH, timeout=120)
            raw.append(count / took * 1000)
            await sender.close()
            for peer, (script, few, options) in PEERS.items():
                some = max(1, round(few * part))
                page = await site.open(browser)
                await page.evaluate(_PAGE)
                await page.evaluate(scripts[script])
                given = [f"{script}-{options.get('batch', '')}", number, some, options]
                took = await page.evaluate("(given) => benchQueue.peer(...given)", given, timeout=120)
                peers[peer].append(some / took * 1000)
                await page.close()
    rows = [Row.of(f"flush {count:,}", ours, raw, other=f"by hand, {BATCH} a request", unit="ops/s", at_least=0.5)]
    for number, (peer, rates) in enumerate(peers.items()):
        goal = 5.0 if number < _LIBRARIES else None
        rows.append(Row.of(f"flush {count:,}", ours, rates, other=peer, unit="ops/s", at_least=goal))
    return rows


async def claim_rows(
    site: Site, bundle: Path, say: Say, *, few: int = BATCH, many: int = MANY, rounds: int = 30
) -> list[Row]:
    """Claiming a batch of 100 from a full queue and from a nearly empty one, by turns, in a page's own Python."""
    async with ChaosBrowser.launch() as browser:
        filler = await _joined(browser, site)
        for count in (few, many):
            say(f"filling a queue with {count:,} operations")
            await filler.evaluate("(given) => benchQueue.fill(...given)", [f"of-{count}", count], timeout=300)
        tab = await site.open(browser)
        await python_page(tab, site, bundle)
        say("claiming")
        given: Sequence[object] = [[f"of-{many}", f"of-{few}"], BATCH, rounds]
        found = json.loads(await tab.evaluate("(given) => bench.claims(...given)", given, timeout=300))
    return [
        Row.of(
            f"claim {BATCH} of {many:,}",
            found[f"of-{many}"],
            found[f"of-{few}"],
            other=f"claim {BATCH} of {few:,}",
            at_most=1.5,
            at_least=0.5,
        )
    ]
