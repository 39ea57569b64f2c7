"""A later release wants a higher version of the database while tabs of this one are open."""

from __future__ import annotations

from e2e.kit import Site, leader, now, until
from e2e.offline_queue.lane import attempt, open_queue

from tabhelm.testing.driver import DrivenBrowser

from .acts import ask_to_upgrade, both_hosts, changes, done, ended, told


async def test_old_tabs_close_step_down_and_say_so(driven: DrivenBrowser, site: Site) -> None:
    tabs = await both_hosts(driven, site)
    for tab in tabs:
        await site.stand(tab)
        await open_queue(tab, flush=False)
    old = await leader(tabs)
    later = await site.open(driven)
    await ask_to_upgrade(later, 2)
    await done(later)  # nobody is in its way
    assert not await later.evaluate("() => asked.blocked"), "every engine gave way at once"
    assert await ended(old.tab) == "versionchange"
    for tab in tabs:
        await told(tab, "newer")
        error = (await attempt(tab, "enqueue", {"kind": "note"}))["error"]
        assert error["code"] == "database-newer" and "reload the page" in error["message"], error
        assert "versionchange" in await changes(tab)

    async def backs_off() -> bool:
        seen = [await now(tab) for tab in tabs]
        return all(at is not None and not at["leads"] for at in seen)

    await until(backs_off, "nobody of this release to lead any more")
