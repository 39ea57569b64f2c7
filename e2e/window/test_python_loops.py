"""Leader loops in Python on the window host: in the page's own interpreter, out of wheels that it names in ``join``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import RECEIVER, Site, now, until
from e2e.leadership.test_python_loops import WHEEL, make_wheel

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm_build.demo_server import DemoServer

from .tabs import joined, locks, roster

LOCK = "e2e:v1:leader:watch"
_STAND = """([python, fence, policy]) => {
  window.stands.watch = { runs: [] };
  stands.watch.election = tab.lead("watch", { python }, { fence, backoffMs: 50, ...policy });
}"""


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


async def _stands(browser: ChaosBrowser, site: Site, host: str, function: str = "watchman:work") -> ChaosTab:
    tab = await joined(browser, site, host, python={"wheels": [f"/tabhelm/{WHEEL}"]})
    await tab.evaluate(_STAND, [function, RECEIVER, {}])
    return tab


async def _leads(tab: ChaosTab, above: int = 0) -> int:
    async def epoch() -> int | None:
        at = await now(tab, "watch")
        assert at is not None
        status = at["status"]
        return status["epoch"] if status["state"] == "leading" and status["epoch"] > above else None

    return await until(epoch, f"the tab to lead with an epoch above {above}", 30)


async def _began(site: Site, epoch: int) -> dict[str, Any]:
    async def effect() -> dict[str, Any] | None:
        return next((each for each in await site.effects() if each["op_id"] == f"began-{epoch}"), None)

    return await until(effect, "the loop's first write")


@pytest.mark.parametrize("other", ["window", "shared"])
async def test_a_frozen_tab_s_loop_ends_and_another_tab_s_follows(
    browser: ChaosBrowser, site: Site, other: str
) -> None:
    first = await _stands(browser, site, "window")
    one = await _leads(first)
    effect = await _began(site, one)
    assert (effect["epoch"], effect["resource"], effect["stream"]) == (one, "e2e:watch", "loop")
    second = await _stands(browser, site, other)
    await first.freeze()
    two = await _leads(second, above=one)
    await _began(site, two)
    await first.thaw()
    await second.close()
    three = await _leads(first, above=two)
    # The first loop stood still with its page. Afterwards it was ended, and could make no more tokens.
    (ended,) = (await _began(site, three))["payload"]["ended"]
    assert ended in ([one, how, True, "LeadershipLost"] for how in ("CancelledError", "LeadershipLost"))


async def test_a_loop_goes_on_after_the_cache(browser: ChaosBrowser, site: Site) -> None:
    first = await _stands(browser, site, "window")
    one = await _leads(first)
    second = await _stands(browser, site, "window")
    await roster(first, 2)
    await first.navigate("/blank2")
    two = await _leads(second, above=one)
    assert await first.back(), await first.not_restored_reasons()
    await first.until("() => tab.hostState.state === 'connected'", what="joined again")
    await second.close()
    three = await _leads(first, above=two)
    (ended,) = (await _began(site, three))["payload"]["ended"]
    assert ended[0] == one and ended[2:] == [True, "LeadershipLost"]
    assert await locks(first, LOCK) == {"held": 1, "pending": 0}


async def test_a_loop_that_breaks_the_interpreter_costs_that_page_its_interpreter(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await joined(browser, site, "window", python={"wheels": [f"/tabhelm/{WHEEL}"]})
    first = await tab.evaluate("() => tab.engine.id")
    await tab.evaluate(_STAND, ["watchman:breaks", RECEIVER, {}])
    other = await _stands(browser, site, "window")
    again = "(id) => tab.hostState.state === 'connected' && tab.engine && tab.engine.id !== id"
    await tab.until(again, 60, "another interpreter", arg=first)

    async def leads_again() -> ChaosTab | None:
        for each in (tab, other):  # whichever was there first
            at = await now(each, "watch")
            if at and at["status"]["state"] == "leading" and at["status"]["epoch"] > 1:
                return each
        return None

    leading = await until(leads_again, "one of them to lead", 30)
    (rest,) = [each for each in (tab, other) if each is not leading]
    await roster(rest, 2)
    above = await _leads(leading, above=1)
    await leading.close()
    await _began(site, await _leads(rest, above=above))
