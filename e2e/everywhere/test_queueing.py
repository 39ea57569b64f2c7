"""Nothing that was acknowledged is lost or applied twice, in whichever engine."""

from __future__ import annotations

import asyncio

from e2e.kit import Site
from e2e.offline_queue.lane import acknowledged, drained, enqueue, judge, operations, queueing

from tabhelm.testing.driver import DrivenBrowser


async def test_400_operations_of_two_tabs_at_once(driven: DrivenBrowser, site: Site, host: str) -> None:
    tabs = [await queueing(driven, site, join_options={"host": host}) for _ in range(2)]
    work = [operations(f"tab{tab.number}", 200, partitions=4) for tab in tabs]
    await asyncio.gather(*(enqueue(tab, wanted) for tab, wanted in zip(tabs, work, strict=True)))
    await drained(tabs[0], timeout=60)
    acks = await acknowledged(*tabs)
    assert len(acks) == 400
    assert len(await judge(site, acks)) == 400


async def test_what_is_enqueued_offline_is_sent_once_the_network_is_back(
    driven: DrivenBrowser, site: Site, host: str
) -> None:
    tabs = [await queueing(driven, site, join_options={"host": host}) for _ in range(2)]
    await enqueue(tabs[0], operations("before", 3))
    await drained(tabs[0], done=3)
    await driven.offline(True)
    for tab in tabs:
        await enqueue(tab, operations(f"off{tab.number}", 10, partitions=2))
    if "navigator.onLine" not in driven.lacks:
        assert not await tabs[0].evaluate("() => navigator.onLine")
    assert len(await site.effects()) == 3
    await driven.offline(False)
    await drained(tabs[0], timeout=60)
    acks = await acknowledged(*tabs)
    assert len(await judge(site, acks)) == len(acks) == 23
