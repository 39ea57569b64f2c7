"""A shared engine that hangs for good keeps no lock of its pages, and takes none from anybody who lives."""

from __future__ import annotations

from typing import Any

import pytest
from test_page_locks import SEEDS, Holder, names, pages

from tabhelm.errors import LockLost
from tabhelm.host.engine import start
from tabhelm.simulated import Settings, SimulatedBrowser, SimulatedPage, World
from tabhelm.simulated.pagelocks import PageLock

FLIGHT = "app:v1:single-flight:catalog"
STALL = 4.0
SOON = STALL + 10.0
"""Seconds in which the pages leave it, boot the next engine, and that one has judged it."""


def work(page: SimulatedPage, seconds: float = 0.0) -> Any:
    async def do(_: PageLock) -> str:
        await page.ports.clock.sleep(seconds)
        return page.name

    return do


def hang(page: SimulatedPage) -> None:
    """Its Python computes without awaiting; it will never go on."""
    assert page.engine is not None
    page.engine.agent.stop()


@pytest.mark.parametrize("seed", SEEDS)
def test_its_locks_and_flights_go_to_others(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            a, b, c = await pages(world, "shared", "shared", "window", stall_after=STALL)
            holder = Holder(a)
            await world.until(lambda: holder.holds)
            flight = a.single_flight("catalog", work(a, 60.0))
            await world.until(lambda: names(world, FLIGHT) == (1, 0))
            same, waits = Holder(b), Holder(c)  # the first waits in the engine that hangs
            other = b.single_flight("catalog", work(b))
            await world.until(lambda: names(world) == (1, 2))
            hang(a)
            await world.until(lambda: same.holds or waits.holds, within=SOON)
            with pytest.raises(LockLost):
                await holder.request.outcome
            with pytest.raises(LockLost):
                await flight.outcome
            await world.until(other.outcome.done, within=SOON)
            first, second = (same, waits) if same.holds else (waits, same)
            first.end()
            await world.until(lambda: second.holds, within=SOON)
            second.end()
            await second.request.outcome
            again = Holder(a)
            await world.until(lambda: again.holds, within=SOON)
            again.end()
            await world.until(lambda: names(world) == (0, 0) and names(world, FLIGHT) == (0, 0), within=SOON)

        world.run(main(), limit=600)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_page_that_still_believes_in_it_keeps_its_lock_until_it_doubts(seed: int) -> None:
    """Another page of that engine lost patience sooner."""
    with World(seed) as world:

        async def main() -> None:
            browser = SimulatedBrowser(world, start)
            patient, hasty = (
                browser.open(name, Settings(host="shared", stall_after=after))
                for name, after in (("patient", 30.0), ("hasty", 2.0))
            )
            for page in (patient, hasty):
                await page.join()
            holder = Holder(patient)
            await world.until(lambda: holder.holds)
            other = Holder(hasty)
            await world.until(lambda: names(world) == (1, 1))
            hang(hasty)
            both = 0
            ends = world.loop.time() + 30.0 + 20.0
            while not other.holds:
                assert world.loop.time() < ends
                await world.sleep(0.05)
                both += holder.holds and other.holds
            assert both == 0 and not holder.holds
            other.end()

        world.run(main(), limit=600)


@pytest.mark.parametrize("end", ["close", "freeze"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_page_that_never_says_that_it_left_delays_it_only(seed: int, end: str) -> None:
    """It is closed, or thawed and closed, when the others have left the engine already."""
    with World(seed) as world:

        async def main() -> None:
            b, a = await pages(world, "shared", "shared", stall_after=STALL)  # the engine dies with the first alone
            holder = Holder(a)
            await world.until(lambda: holder.holds)
            other = Holder(b)
            await world.until(lambda: names(world) == (1, 1))
            hang(a)
            a.freeze()
            await world.sleep(SOON)
            if end == "close":
                a.crash()
            else:
                a.thaw()
            await world.until(lambda: other.holds, within=2 * SOON)

        world.run(main(), limit=600)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_page_with_an_engine_of_its_own_is_robbed_of_nothing(seed: int) -> None:
    """Its body runs on as soon as it goes on."""
    with World(seed) as world:

        async def main() -> None:
            a, b = await pages(world, "window", "shared", stall_after=STALL)
            holder = Holder(a)
            await world.until(lambda: holder.holds)
            assert a.engine is not None
            blamed = a.engine.engine_id
            other = Holder(b)
            await world.until(lambda: names(world) == (1, 1))
            a.hang(40.0)
            b.session.silent_engine = blamed
            assert b.engine is not None
            b.engine.agent.die()
            await world.sleep(30.0)
            assert not other.holds

        world.run(main(), limit=600)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_engine_that_is_blamed_but_lives_keeps_all(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            browser = SimulatedBrowser(world, start)
            a = browser.open("a", Settings(host="shared", build="one"))
            b = browser.open("b", Settings(host="shared", build="two"))
            for page in (a, b):
                await page.join()
            holder = Holder(a)
            await world.until(lambda: holder.holds)
            assert a.engine is not None and b.engine is not None
            other = Holder(b)
            b.session.silent_engine = a.engine.engine_id
            b.engine.agent.die()
            await world.sleep(30.0)
            assert holder.holds and not other.holds
            holder.end()
            assert await holder.request.outcome == "a"

        world.run(main(), limit=600)
