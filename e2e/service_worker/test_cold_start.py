"""A page that is opened without a network: from nothing, in each engine."""

from __future__ import annotations

import asyncio

import pytest
from e2e.kit import Site, until

from tabhelm.testing.driver import DrivenBrowser, DrivenTab

from .pages import FORGETS, controlled

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


async def kept(driven: DrivenBrowser, site: Site) -> None:
    """The demo was here, was kept, and is gone again with all its tabs."""
    tab = await demo(driven, site.url)
    settled = await tab.until(_SETTLED, timeout=60, what="the demo to be kept")
    assert settled["state"] == "ready", settled
    status = await tab.evaluate("() => demo.offline.status()")
    print(f"\n{driven.engine} {driven.version}: keeps {status['bytes'] / 1e6:.1f} MB and {status['files']} files more")
    await driven.new_tab(f"{site.url}/blank" if driven.engine in FORGETS else "about:blank")
    await tab.close()


async def records(tab: DrivenTab, *titles: str) -> list[str]:
    """Enter cases; returns the operations' ids once they are durable."""
    await tab.evaluate(_RECORD, list(titles))
    acknowledged: list[str] = await tab.until(_ACKS, arg=len(titles), what="what was recorded to be durable")
    stats = await tab.evaluate("() => demo.queue.stats()")
    assert stats["queued"] + stats["inFlight"] == len(titles), stats
    return sorted(acknowledged)


async def applied(site: Site, count: int) -> list[str]:
    """Wait until the server has so many cases; returns the operations' ids, sorted: each is a partition of its own."""

    async def all_there() -> list[str] | None:
        sent = [each["op_id"] for each in await site.effects() if each["payload"]["kind"] == "add"]
        return sorted(sent) if len(sent) >= count else None

    return await until(all_there, f"{count} cases to be applied", 60)


@pytest.mark.parametrize("host", ["shared", "window"])
async def test_a_page_opened_without_its_server_joins_records_and_sends_later(
    driven: DrivenBrowser, site: Site, host: str
) -> None:
    """Page, client, engine, WebAssembly, snapshot and the lazily fetched extras: all of it was kept."""
    await kept(driven, site)
    await asyncio.to_thread(site.server.stop)
    cold = await demo(driven, site.url, f"&host={host}")
    await controlled(cold)
    ready = await cold.evaluate("() => [demo.tab.host, demo.tab.engine.from, Math.round(demo.readyMs)]")
    print(f"opened without a server: joined on the {ready[0]} host from the {ready[1]} in {ready[2]} ms")
    assert ready[:2] == [host, "snapshot"]
    assert await cold.evaluate("() => demo.tab.lock('case', () => 'held')") == "held", "extras.mjs is there"
    acknowledged = await records(cold, "Pump 7", "Lift 3")
    await asyncio.to_thread(site.server.start)
    assert await applied(site, 2) == acknowledged


async def test_a_page_opened_without_a_network_sends_when_it_is_back(driven: DrivenBrowser, site: Site) -> None:
    await kept(driven, site)
    await driven.offline(True)
    try:
        cold = await demo(driven, site.url)
        await driven.offline(True)  # the engine, too, which has started since
        acknowledged = await records(cold, "Pump 7", "Lift 3")
        assert [each for each in await site.effects() if each["payload"]["kind"] == "add"] == []
    finally:
        await driven.offline(False)
    assert await applied(site, 2) == acknowledged


async def test_what_is_recorded_offline_outlives_its_tab(driven: DrivenBrowser, site: Site) -> None:
    """Opened offline, closed offline; another tab sends it, days later for all it knows."""
    await kept(driven, site)
    await asyncio.to_thread(site.server.stop)
    cold = await demo(driven, site.url)
    acknowledged = await records(cold, "Pump 7")
    await cold.close()
    await asyncio.to_thread(site.server.start)
    await demo(driven, site.url)
    assert await applied(site, 1) == acknowledged
