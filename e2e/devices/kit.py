"""A device: a browser of its own, signed in, with a tab that stands for a resource at the lease service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from e2e.devices.site import LEASES, DeviceSite
from e2e.kit import Leader, join, leader, leaders, now

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm.testing.pytest_plugin import LaunchBrowser

RECEIVER = "/api/operations"
LEASE_S = 15.0
STAND = """([resource, policy]) => {
  const stand = (stands[resource] = { runs: [], statuses: [] });
  stand.election = tab.lead(resource, (ctx) => new Promise((resolve) => {
    const run = { ctx, epoch: ctx.epoch, at: clock(), abortedAt: null, reason: null, kept: { ...ctx.headers() } };
    stand.runs.push(run);
    ctx.signal.addEventListener("abort", () => {
      run.abortedAt = clock();
      run.reason = ctx.signal.reason.reason;
      resolve();
    });
  }), policy);
  stand.election.addEventListener("status", ({ detail }) => stand.statuses.push({ at: clock(), ...detail }));
}"""
# With the headers that the newest loop drew when it began: what a leader sends that knows of nothing.
LATE = """async (name) => {
  const { kept } = stands.job.runs.at(-1);
  const body = JSON.stringify({ operations: [{ op_id: name, partition: "p", payload: { name } }] });
  const headers = { ...kept, "Content-Type": "application/json" };
  return (await fetch("/api/operations", { method: "POST", headers, body })).status;
}"""
WRITE = """async (name) => {
  const { ctx } = stands.job.runs.at(-1);
  const body = JSON.stringify({ operations: [{ op_id: name, partition: "p", payload: { name } }] });
  const headers = { ...ctx.headers(), "Content-Type": "application/json" };
  return (await fetch("/api/operations", { method: "POST", headers, body })).status;
}"""
HEADERS = "() => { try { stands.job.runs.at(-1).ctx.headers(); return 'given'; } catch (error) { return error.name; } }"


@dataclass
class Device:
    name: str
    browser: ChaosBrowser
    tab: ChaosTab
    site: DeviceSite

    async def stand(self, **policy: Any) -> None:
        """Stand for ``job`` at the lease service; the receiver is shown each new epoch."""
        given = {"authorities": ["server-lease"], "lease": LEASES, "fence": RECEIVER, **policy}
        await self.tab.evaluate(STAND, ["job", given])

    async def leads(self, above: int = 0, timeout: float = 30.0) -> Leader[ChaosTab]:
        return await leader([self.tab], above=above, timeout=timeout)

    async def is_leading(self) -> bool:
        return bool(await leaders([self.tab]))

    async def write(self, name: str) -> int:
        return int(await self.tab.evaluate(WRITE, name))

    async def late(self, name: str) -> int:
        return int(await self.tab.evaluate(LATE, name))

    async def waits(self) -> None:
        """Wait until it asks the service."""
        await self.tab.until("() => stands.job.election.status.standby === true", what=f"{self.name} to stand by")

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


async def enter(tab: ChaosTab, site: DeviceSite, **options: Any) -> None:
    """Go to an empty page and join."""
    await tab.navigate(f"{site.url}/blank")
    await join(tab, **options)
