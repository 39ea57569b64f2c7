"""Leader loops in Python, named by the page, out of wheels that it names when it joins."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import RECEIVER, Site, join, now, until
from playwright.async_api import Error as PlaywrightError

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm_build.demo_server import DemoServer

WHEEL = "watchman-1.0-py3-none-any.whl"
MODULE = """
import asyncio
import json
import random

from pyodide.http import pyfetch

from tabhelm.browser.entropy import BrowserEntropy

ENDED = []


async def note(ctx, name, **payload):
    operations = [{"op_id": name, "partition": "p", "payload": {"kind": "note", **payload}}]
    headers = {**ctx.headers(), "Content-Type": "application/json"}
    body = json.dumps({"operations": operations})
    response = await pyfetch("/api/operations", method="POST", headers=headers, body=body)
    assert response.status == 200, response.status


async def work(ctx):
    await note(ctx, f"began-{ctx.epoch}", ended=ENDED)
    try:
        while True:
            await ctx.sleep(0.05)
    except BaseException as end:
        try:
            ctx.headers()
        except Exception as error:
            ENDED.append([ctx.epoch, type(end).__name__, ctx.lost, type(error).__name__])
        raise


async def draws(ctx):
    jitter = BrowserEntropy()
    own = jitter.token_bytes(8).hex()
    await note(ctx, own, bytes=own, jitter=[jitter.uniform(0, 1) for _ in range(3)], random=random.random())
    await asyncio.Event().wait()


async def breaks(ctx):
    if ctx.epoch == 1:
        json.loads("[" * 100_000)  # the browser's stack overflows, and no ``except`` helps
    await note(ctx, f"began-{ctx.epoch}")
    await asyncio.Event().wait()


async def fails(ctx):
    raise ValueError("broken on purpose")


def plain(ctx):
    pass
"""


def make_wheel(path: Path) -> None:
    """A wheel, made by hand, with one module."""
    info = "watchman-1.0.dist-info"
    files = {
        "watchman.py": MODULE,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: watchman\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)


@pytest.fixture(scope="module")
def bundle_with_wheel(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("bundle") / "dist"
    shutil.copytree(bundle, copy)
    make_wheel(copy / WHEEL)
    return copy


@pytest.fixture
def site(bundle_with_wheel: Path) -> Iterator[Site]:
    with DemoServer(bundle_with_wheel) as server:
        yield Site(server)


async def stand(tab: ChaosTab, function: str, resource: str = "watch") -> None:
    await tab.evaluate(
        """([resource, python, fence]) => {
          window.stands[resource] = { runs: [] };
          stands[resource].election = tab.lead(resource, { python }, { fence, backoffMs: 50 });
        }""",
        [resource, function, RECEIVER],
    )


async def status(tab: ChaosTab, resource: str = "watch") -> dict[str, Any]:
    at = await now(tab, resource)
    assert at is not None
    found: dict[str, Any] = at["status"]
    return found


async def joined(browser: ChaosBrowser, site: Site, **options: Any) -> ChaosTab:
    return await site.joined(browser, **{"python": {"wheels": [f"/tabhelm/{WHEEL}"]}, **options})


async def leads(tab: ChaosTab, above: int = 0) -> int:
    async def epoch() -> int | None:
        at = await status(tab)
        return at["epoch"] if at["state"] == "leading" and at["epoch"] > above else None

    return await until(epoch, f"the tab to lead with an epoch above {above}", 30)


async def test_a_python_loop_leads_is_cancelled_and_another_tab_s_follows(browser: ChaosBrowser, site: Site) -> None:
    first, second = [await joined(browser, site) for _ in range(2)]
    await stand(first, "watchman:work")
    one = await leads(first)

    async def began(epoch: int) -> dict[str, Any] | None:
        return next((each for each in await site.effects() if each["op_id"] == f"began-{epoch}"), None)

    effect = await until(lambda: began(one), "the loop's first write")
    assert (effect["epoch"], effect["resource"], effect["stream"]) == (one, "e2e:watch", "loop")
    await stand(second, "watchman:work")
    await first.freeze()
    two = await leads(second, above=one)
    effect = await until(lambda: began(two), "the second loop's first write")
    # The frozen page's loop ran in the engine, which goes on: it was ended, and could make no more tokens. Its own
    # ``ctx.sleep`` may have noticed the lost lock before it was cancelled.
    (ended,) = effect["payload"]["ended"]
    assert ended in ([one, how, True, "LeadershipLost"] for how in ("CancelledError", "LeadershipLost"))
    await first.thaw()
    await second.close()
    three = await leads(first, above=two)
    await until(lambda: began(three), "the first tab's second loop")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("nowhere.at_all:work", "importing 'nowhere.at_all' failed: ModuleNotFoundError"),
        ("watchman:missing", "'missing' is not an async function of 'watchman'"),
        ("watchman:plain", "'plain' is not an async function of 'watchman'"),
    ],
)
async def test_a_loop_that_is_not_there_is_named(browser: ChaosBrowser, site: Site, function: str, words: str) -> None:
    tab = await joined(browser, site)
    await stand(tab, function)
    over = await tab.evaluate("() => stands.watch.election.stopped")
    assert over["state"] == "stopped"
    assert words in over["error"]["message"], over
    # It was this candidacy's fault alone.
    await stand(tab, "watchman:work", "other")
    await tab.until("() => stands.other.election.status.state === 'leading'")


async def test_a_loop_that_raises_backs_off_and_is_told(browser: ChaosBrowser, site: Site) -> None:
    tab = await joined(browser, site)
    await stand(tab, "watchman:fails")
    told = await tab.until("() => events.find(({ type }) => type === 'loop-failed')", what="the event loop-failed")
    assert told["error"] == "ValueError: broken on purpose"
    await tab.until("() => events.filter(({ type }) => type === 'loop-failed').length >= 3", what="it to try again")


async def test_a_loop_that_breaks_the_interpreter_costs_the_engine_not_the_tabs(
    browser: ChaosBrowser, site: Site
) -> None:
    tabs = [await joined(browser, site) for _ in range(2)]
    await stand(tabs[0], "watchman:breaks")
    await tabs[0].until("() => tab.engine?.incarnation === 2", what="another engine")
    await leads(tabs[0], above=1)
    await tabs[1].until("() => tab.engine?.incarnation === 2", what="another engine")

    async def began() -> bool:
        return [each["op_id"] for each in await site.effects()][:1] == ["began-2"]

    await until(began, "the second engine's loop")

    async def alone() -> bool:
        return len(await browser.shared_workers(url_contains="engine.mjs")) == 1

    await until(alone, "the broken one to close itself")


async def test_a_wheel_that_is_not_there_refuses_the_join(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    with pytest.raises(PlaywrightError, match=r"nothing-1\.0-py3-none-any\.whl cannot be fetched: status 404"):
        await join(tab, python={"wheels": ["/tabhelm/nothing-1.0-py3-none-any.whl"]})
    assert (await join(tab, python={"wheels": [f"/tabhelm/{WHEEL}"]}))["engine"]["incarnation"] == 1


async def test_four_engines_of_one_snapshot_draw_their_own(browser: ChaosBrowser, site: Site) -> None:
    ids = []
    for number in range(4):
        tab = await joined(browser, site, app=f"app{number}")
        facts = await tab.evaluate("() => [tab.id, tab.connectionId, tab.engine.id, tab.engine.from]")
        assert facts.pop() == "snapshot"
        ids += facts
        await stand(tab, "watchman:draws")
    assert len(await browser.shared_workers(url_contains="engine.mjs")) == 4

    async def all_drew() -> list[dict[str, Any]] | None:
        effects = await site.effects()
        return effects if len(effects) == 4 else None

    effects = await until(all_drew, "four engines to draw")
    assert len(set(ids)) == 12
    assert len({effect["domain"] for effect in effects}) == 4
    for kind in ("random", "bytes"):
        assert len({effect["payload"][kind] for effect in effects}) == 4, kind
    assert len({number for effect in effects for number in effect["payload"]["jitter"]}) == 12
