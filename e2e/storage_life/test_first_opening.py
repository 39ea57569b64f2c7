"""Many tabs, in several engines and pages, open the database for the first time at the same moment."""

from __future__ import annotations

import asyncio

from e2e.kit import Site, join, leader, uncaught
from e2e.offline_queue.lane import acknowledged, drained, enqueue, judge, open_queue, operations

from tabhelm.testing.driver import DrivenBrowser

from .acts import changes, stored


async def test_first_openings_at_once_from_several_engines(driven: DrivenBrowser, two_builds: Site) -> None:
    """Two builds have a shared engine each, two pages an engine of their own: four open the database at once."""
    tabs = [await two_builds.open(driven) for _ in range(5)]
    hosts = [
        {"host": "shared"},
        {"host": "shared"},
        {"host": "shared", "base": "/tabhelm2"},
        {"host": "window"},
        {"host": "window", "base": "/tabhelm2"},
    ]

    async def begin(number: int) -> None:
        tab = tabs[number]
        # Four engines boot at once, and take their time.
        await join(tab, enginePatienceMs=15_000, **hosts[number])
        await two_builds.stand(tab)
        await open_queue(tab)
        await enqueue(tab, operations(f"first-{number}", 10, partitions=2))

    await asyncio.gather(*(begin(number) for number in range(len(tabs))))
    assert len({(await tab.evaluate("() => tab.engine?.id ?? tab.id")) for tab in tabs}) == 4
    await leader(tabs)
    await drained(tabs[0], done=50, timeout=60)
    effects = await judge(two_builds, await acknowledged(*tabs))
    assert len(effects) == 50
    await leader(tabs)
    domain = (await stored(tabs[0]))["domain"]["domain"]
    assert {effect["domain"] for effect in effects} == {domain}, "one database, one domain"
    for tab in tabs:
        assert not {"wiped", "blocked", "newer"} & set(await changes(tab))
        assert await uncaught(tab) == []
