"""A worker that takes commands from whoever leads, and refuses those of whoever led."""

from __future__ import annotations

from pathlib import Path

from e2e.kit import STALL_MS, WATCHED, join, leader, stands_by
from e2e.serving.site import serve

from tabhelm.testing import ChaosBrowser

INDEXER = """
import { rejectStale } from "/tabhelm/guard.mjs";
const done = [];
const run = rejectStale(async ({ job }) => (done.push(job), [...done]));
onconnect = ({ ports: [port] }) => {
  port.onmessage = async ({ data }) => port.postMessage(await run(data));
};
"""
_CONNECT = """() => {
  const { port } = new SharedWorker("/indexer.mjs", { type: "module" });
  window.command = (job, token) => {
    port.postMessage({ job, token });
    return new Promise((resolve) => (port.onmessage = ({ data }) => resolve(data)));
  };
  stands.job = { runs: [], statuses: [] };
  stands.job.election = tab.lead("job", (ctx) => new Promise((resolve) => {
    const run = { ctx, epoch: ctx.epoch, at: clock(), abortedAt: null, reason: null };
    stands.job.runs.push(run);
    ctx.signal.addEventListener("abort", () => ((run.abortedAt = clock()), resolve()));
  }));
}"""
_TOKEN = "() => stands.job.runs.at(-1).ctx.nextToken()"
_COMMAND = "([job, token]) => command(job, token)"


async def test_a_worker_refuses_the_commands_of_a_leader_that_hung(browser: ChaosBrowser, bundle: Path) -> None:
    with serve(bundle) as site:
        site.does.script("/indexer.mjs", INDEXER)
        tabs = [await browser.new_tab(f"{site.url}/blank") for _ in range(2)]
        for tab in tabs:
            await join(tab, **WATCHED)
            await tab.evaluate(_CONNECT)
        first = await leader(tabs)
        (other,) = [tab for tab in tabs if tab is not first.tab]
        await stands_by(other)
        assert await first.tab.evaluate(_COMMAND, ["one", await first.tab.evaluate(_TOKEN)]) == {
            "ok": True,
            "value": ["one"],
        }
        late = await first.tab.evaluate(_TOKEN)
        await first.tab.hang(5 * STALL_MS / 1000)
        second = await leader([other], above=first.epoch)
        token = await other.evaluate(_TOKEN)
        assert (await other.evaluate(_COMMAND, ["two", token]))["value"] == ["one", "two"]
        refused = await first.tab.evaluate(_COMMAND, ["late", late])
        assert (refused["ok"], refused["error"], refused["overtaken"]) == (False, "STALE_OWNER", False)
        assert refused["highWater"]["epoch"] == second.epoch
        after = await other.evaluate(_COMMAND, ["three", await other.evaluate(_TOKEN)])
        assert after["value"] == ["one", "two", "three"], "what was refused was not done"
