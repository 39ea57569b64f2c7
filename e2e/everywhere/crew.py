"""Joined tabs on a given host that stand for the job, in whichever engine."""

from __future__ import annotations

from typing import Any

from e2e.kit import Site, leader, stands_by

from tabhelm.testing.driver import DrivenBrowser, DrivenTab

# On the window host nobody can ping a page that hangs: another takes over after this time, the shortest allowed.
TAKEOVER_MS = 10_000


async def crew(
    driven: DrivenBrowser, site: Site, host: str, count: int, *, join: dict[str, Any] | None = None, **policy: Any
) -> list[DrivenTab]:
    """So many joined tabs that stand; the first leads, the second is next in line."""
    tabs: list[DrivenTab] = []
    for number in range(count):
        tab = await site.joined(driven, host=host, **(join or {}))
        await stand(site, tab, **policy)
        tabs.append(tab)
        if number == 0:
            await leader(tabs)
        elif number == 1:
            await stands_by(tab)
    return tabs


async def stand(site: Site, tab: DrivenTab, **policy: Any) -> None:
    await site.stand(tab, **{"takeoverAfterMs": TAKEOVER_MS, **policy})
