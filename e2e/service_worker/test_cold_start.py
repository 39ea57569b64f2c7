"""A page that is opened without a network: from nothing, in each engine."""

from __future__ import annotations

import asyncio

import pytest
from e2e.kit import Site, until

from tabhelm.testing.driver import DrivenBrowser, DrivenTab

from .pages import controlled

_DEMO_READY = "() => window.demo && document.querySelector('#connection').textContent.startsWith('connected')"
_RECORD = """async (titles) => {
  for (const title of titles) {
    document.querySelector("#title").value = title;
    document.querySelector("#add").requestSubmit();
  }
}"""
_SETTLED = """() => demo.offline && !["starting", "installing"].includes(demo.offline.state)
  && { state: demo.offline.state, reason: demo.offline.reason }"""
_ACKS = "(count) => demo.acks.length === count && demo.acks.map(({ id }) => id)"


async def demo(driven: DrivenBrowser, url: str, query: str = "") -> DrivenTab:
    tab = await driven.new_tab(f"{url}/?test{query}")
    await tab.until(_DEMO_READY, timeout=60, what="the demo to join")
    return tab


@pytest.mark.parametrize("host", ["shared", "window"])
async def test_a_page_opened_without_its_server_joins_records_and_sends_later(
    driven: DrivenBrowser, site: Site, host: str
) -> None:
    """Page, client, engine, WebAssembly, snapshot and the lazily fetched extras: all of it was kept."""
    first = await demo(driven, site.url)
    kept = await first.until(_SETTLED, timeout=60, what="the demo to be kept")
    assert kept["state"] == "ready", kept
    status = await first.evaluate("() => demo.offline.status()")
    print(
        f"\n{driven.engine} {driven.version}: keeps {status['bytes'] / 1e6:.1f} MB, {status['files']} files of the demo"
    )
    await first.navigate("about:blank")
    beside = await driven.new_tab("about:blank")
    await first.close()

    await asyncio.to_thread(site.server.stop)
    cold = await demo(driven, site.url, f"&host={host}")
    await controlled(cold)
    ready = await cold.evaluate(
        "() => ({ host: demo.tab.host, from: demo.tab.engine.from, ms: Math.round(demo.readyMs) })"
    )
    print(f"opened without a server: {ready}")
    assert (ready["host"], ready["from"]) == (host, "snapshot")
    await cold.evaluate(_RECORD, ["Pump 7", "Lift 3"])
    acknowledged = await cold.until(_ACKS, arg=2, what="both to be durable")
    assert await cold.evaluate("() => demo.tab.lock('case', () => 'held')") == "held", "extras.mjs is there"
    stats = await cold.evaluate("() => demo.queue.stats()")
    assert stats["queued"] + stats["inFlight"] == 2, stats

    await asyncio.to_thread(site.server.start)

    async def applied() -> list[str] | None:
        sent = [each["op_id"] for each in await site.effects() if each["payload"]["kind"] == "add"]
        return sent if len(sent) == 2 else None

    assert await until(applied, "both to be applied", 60) == acknowledged
    await beside.close()
