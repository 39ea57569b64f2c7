"""A device: a browser of its own, signed in, with a tab that stands for a resource at the lease service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from e2e.devices.site import LEASES, DeviceSite
from e2e.kit import Leader, join, late, leader, leaders, now, stand, write

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm.testing.pytest_plugin import LaunchBrowser

LEASE_S = 15.0
HEADERS = "() => { try { stands.job.runs.at(-1).ctx.headers(); return 'given'; } catch (error) { return error.name; } }"


@dataclass
class Device:
    name: str
    browser: ChaosBrowser
    tab: ChaosTab
    site: DeviceSite

    async def stand(self, **policy: Any) -> None:
        """Stand for ``job`` at the lease service; the receiver is shown each new epoch."""
        await stand(self.tab, **{"authorities": ["server-lease"], "lease": LEASES, **policy})

    async def leads(self, above: int = 0, timeout: float = 30.0) -> Leader[ChaosTab]:
        return await leader([self.tab], above=above, timeout=timeout)

    async def is_leading(self) -> bool:
        return bool(await leaders([self.tab]))

    async def write(self, name: str) -> int | None:
        return await write(self.tab, name)

    async def late(self, name: str) -> int | None:
        return await late(self.tab, name)

    async def waits(self) -> None:
        """Wait until it asks the service."""
        await self.tab.until("() => stands.job.election.status.standby === true", what=f"{self.name} to stand by")

    async def gives_up(self) -> dict[str, Any]:
        """Wait until its first loop was told to stop for want of a renewal; what became of the loop."""
        ended = "() => stands.job.runs[0].abortedAt !== null && stands.job.runs[0]"
        run: dict[str, Any] = await self.tab.until(ended, 20, f"{self.name} to give up")
        assert run["reason"] == "lease-renewal-failed"
        return run

    async def stops(self) -> None:
        """Let it stand for ``job`` no longer, and wait until what it had is given back."""
        await self.tab.evaluate("() => { stands.job.election.stop('enough'); return stands.job.election.stopped; }")

    async def status(self) -> dict[str, Any]:
        at = await now(self.tab)
        assert at is not None
        found: dict[str, Any] = at["status"]
        return found


async def device(launch: LaunchBrowser, site: DeviceSite, name: str, user: str = "ann", **options: Any) -> Device:
    """A new browser, signed in, whose tab has joined."""
    browser = await launch()
    tab = await browser.new_tab(site.sign_in(user, name))
    await enter(tab, site, **options)
    return Device(name, browser, tab, site)


async def two(
    launch: LaunchBrowser, site: DeviceSite, *, writes: bool = True, **first_options: Any
) -> tuple[Device, Device]:
    """The first leads and has written (unless told otherwise), the second waits. ``first_options``: of its ``join``."""
    first = await device(launch, site, "first", **first_options)
    await first.stand()
    await first.leads()
    if writes:
        assert await first.write("one") == 200
    return first, await another(launch, site)


async def another(launch: LaunchBrowser, site: DeviceSite) -> Device:
    """A second device that waits."""
    second = await device(launch, site, "second")
    await second.stand()
    await second.waits()
    return second


async def enter(tab: ChaosTab, site: DeviceSite, **options: Any) -> None:
    """Go to an empty page and join."""
    await tab.navigate(f"{site.url}/blank")
    await join(tab, **options)
