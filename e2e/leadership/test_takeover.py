"""Shared engines that keep their locks in silence: hung for good by a Python loop, or stopped with their process."""

from __future__ import annotations

import asyncio
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.kit import RECEIVER, STALL_MS, STEADY_MS, WATCHED, Site, late, leader, leaders, now, stands_by, until, write

from tabhelm.testing import ChaosBrowser
from tabhelm_build.demo_server import DemoServer

SECOND = "/tabhelm2"
TAKEOVER_MS = 10_000
BEAT_MS = 5_000
MOMENT_MS = 2_000
UNTOLD_MS = 25_000
"""The least silence after which a standby takes over that never heard the leader and was told nothing of it."""
WHEEL = "endless-1.0-py3-none-any.whl"
MODULE = """
import json

from pyodide.http import pyfetch


async def computes(ctx):
    operations = [{"op_id": f"began-{ctx.epoch}", "partition": "p", "payload": {"kind": "note"}}]
    headers = {**ctx.headers(), "Content-Type": "application/json"}
    response = await pyfetch(
        "/api/operations", method="POST", headers=headers, body=json.dumps({"operations": operations})
    )
    assert response.status == 200, response.status
    while ctx.epoch == 1:
        pass  # the engine's only thread: nothing in it runs any more
    while True:
        await ctx.sleep(1.0)
"""


@pytest.fixture(scope="module")
def bundle_with_wheel(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("bundle") / "dist"
    shutil.copytree(bundle, copy)
    info = "endless-1.0.dist-info"
    files = {
        "endless.py": MODULE,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: endless\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(copy / WHEEL, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return copy


@pytest.fixture
def site_with_wheel(bundle_with_wheel: Path) -> Iterator[Site]:
    with DemoServer(bundle_with_wheel) as server:
        yield Site(server)


_STAND = """(fence) => {
  const stand = (window.stands.watch = { runs: [], statuses: [] });
  stand.election = tab.lead("watch", { python: "endless:computes" }, { fence });
  stand.election.addEventListener("status", ({ detail }) => stand.statuses.push({ at: clock(), ...detail }));
}"""


async def test_an_engine_that_a_python_loop_hangs_for_good_costs_the_stall_time_and_a_moment(
    browser: ChaosBrowser, site_with_wheel: Site, report_figure: Callable[[object], None]
) -> None:
    site = site_with_wheel
    hidden, shown = [await site.joined(browser, python={"wheels": [f"/tabhelm/{WHEEL}"]}, **WATCHED) for _ in range(2)]
    await site.stand(hidden)
    page_loop = await leader([hidden])  # led in the engine that will hang, too
    await shown.evaluate(_STAND, RECEIVER)

    async def began(epoch: int) -> bool:
        return any(each["op_id"] == f"began-{epoch}" for each in await site.effects())

    await until(lambda: began(1), "the loop to begin, and to hang its engine")
    start, engine = await shown.evaluate("() => [clock(), tab.engine.id]")
    assert engine == page_loop.engine
    led, boot = await shown.until(
        """() => {
          const led = stands.watch.statuses.find(({ state, epoch }) => state === "leading" && epoch === 2);
          return led && [led.at, tab.engine.bootMs];
        }""",
        what="the Python loop's next leader",
    )
    took = led - start
    report_figure(f"an engine hung for good: led again after {took:.0f} ms (stallAfterMs {STALL_MS}, boot {boot} ms)")
    # How long is a figure, told above. Asserted is that the page's word was taken.
    assert STALL_MS / 2 < took < UNTOLD_MS
    # A hidden page's timers are slower, and so it is to notice. Then its turn comes in the same way.
    new = await leader([hidden], above=page_loop.epoch)
    for tab in (hidden, shown):
        assert await tab.evaluate("() => tab.engine.incarnation") == 2
    assert await write(new.tab, "next") == 200
    await until(lambda: began(2), "the next leader's write")
    told = await shown.evaluate(
        "() => events.filter(({ type }) => type === 'took-over').map(({ resource }) => resource)"
    )
    assert sorted(told) == ["e2e:job", "e2e:watch"]


_LATE = """(stillMs) => {
  const { ctx } = stands.job.runs.at(-1);
  window.late = null;
  // Armed all the time: the first thing after the process stood still, whenever that is.
  let last = performance.now();
  const timer = setInterval(() => {
    const stoodStill = performance.now() - last >= stillMs;
    last = performance.now();
    if (!stoodStill) return;
    clearInterval(timer);
    try {
      late = { name: null, headers: ctx.headers() };
    } catch (error) {
      late = { name: error.name };
    }
  }, 100);
}"""


async def test_a_process_with_engine_and_leader_is_stopped_and_replaced_after_its_time(
    browser: ChaosBrowser, two_builds: Site
) -> None:
    site = two_builds
    first = await site.joined(browser)
    await site.stand(first, takeoverAfterMs=TAKEOVER_MS)
    old = await leader([first])
    second = await site.joined(browser, base=SECOND)
    await site.stand(second, takeoverAfterMs=TAKEOVER_MS)
    await stands_by(second)
    assert await write(first, "one") == 200
    # It has been heard: whoever never heard a leader gives it more time, since it may only be beginning.
    await second.until("() => stands.job.election.leader()?.epoch === 1", what="the second tab to hear of the first")

    await first.evaluate(_LATE, TAKEOVER_MS / 2)
    began = await second.evaluate("() => clock()")
    await first.stop()
    stopped = await second.evaluate("() => clock()")
    new = await leader([second], above=old.epoch, timeout=20)
    assert TAKEOVER_MS - BEAT_MS - 500 <= new.at - began < UNTOLD_MS
    assert await write(second, "two") == 200
    silent = await second.evaluate("() => events.find(({ type }) => type === 'took-over').silentForMs")
    assert TAKEOVER_MS <= silent < UNTOLD_MS

    long = f"(since) => clock() - since > {STEADY_MS + 1_000}"
    await second.until(long, what="a standstill that the first has to notice", arg=stopped)
    await first.cont()
    await first.until("() => late", what="the first tab to go on")
    assert await first.evaluate("() => late.name") == "LeadershipLost", "the page doubts before it hears anything"
    assert await late(first, "late") == 409, "what it had in its hand is refused"
    await stands_by(first)
    assert await leaders([first, second]) == [new]
    assert [(each["op_id"], each["epoch"]) for each in await site.effects()] == [("one", old.epoch), ("two", new.epoch)]


async def test_a_stopped_leader_is_left_alone_under_a_policy_that_says_never(
    browser: ChaosBrowser, two_builds: Site
) -> None:
    site = two_builds
    first = await site.joined(browser)
    await site.stand(first, takeoverAfterMs="never")
    old = await leader([first])
    second = await site.joined(browser, base=SECOND)
    await site.stand(second, takeoverAfterMs="never")
    await stands_by(second)
    await first.stop()
    await asyncio.sleep(
        (TAKEOVER_MS + 2 * MOMENT_MS) / 1000
    )  # nothing may happen for so long: there is nothing to await
    at = await now(second)
    assert at is not None and at["status"]["state"] == "waiting"
    await first.cont()
    await first.kill_process()
    await leader([second], above=old.epoch)
