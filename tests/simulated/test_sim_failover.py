"""How fast the real core hands over, in virtual time: the promises of liveness, for each way a leader can go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tabhelm.host.engine import start
from tabhelm.simulated import PageContext, PageElection, Settings, SimulatedBrowser, SimulatedPage, World

STALL_AFTER = 4.0
SEEDS = range(6)


async def lead(context: PageContext) -> None:
    while True:
        context.next_token()
        await context.sleep(0.2)


class Stage:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.browser = SimulatedBrowser(self.world, start)
        self.elections: dict[SimulatedPage, PageElection] = {}

    async def ready(self) -> SimulatedPage:
        """Four tabs, of which one leads that does not host the engine; returns the leader."""
        host = await self.browser.open("host", Settings(stall_after=STALL_AFTER)).join()
        for name in ("a", "b", "c"):
            page = await self.browser.open(name, Settings(stall_after=STALL_AFTER)).join()
            self.elections[page] = page.lead("job", lead)
        assert len(self.browser.engines) == 1 and host.alive
        await self.world.until(lambda: self.leader() is not None)
        await self.world.sleep(5.0)  # the standby has queued
        leader = self.leader()
        assert leader is not None
        return leader

    def leader(self) -> SimulatedPage | None:
        acting = [
            page for page, election in self.elections.items() if election.acting and page.agent.state == "running"
        ]
        assert len(acting) <= 1, f"{acting} lead at once"
        return acting[0] if acting else None

    async def takes(self, trouble: Callable[[SimulatedPage], object], within: float) -> float:
        old = await self.ready()
        before = self.world.loop.time()
        trouble(old)
        await self.world.until(lambda: self.leader() not in (None, old), within=within, step=0.002)
        return self.world.loop.time() - before


@pytest.fixture(params=SEEDS)
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(request.param)


@pytest.mark.parametrize(
    "trouble",
    [SimulatedPage.close, SimulatedPage.crash, SimulatedPage.freeze, SimulatedPage.navigate_away, SimulatedPage.leave],
    ids=lambda trouble: trouble.__name__,
)
def test_another_tab_leads_within_milliseconds(stage: Stage, trouble: Callable[[SimulatedPage], object]) -> None:
    with stage.world:
        assert stage.world.run(stage.takes(trouble, within=1.0)) < 0.15


def test_a_hung_leader_is_replaced_within_stall_after(stage: Stage) -> None:
    with stage.world:
        taken = stage.world.run(stage.takes(lambda page: page.hang(60.0), within=30.0))
        assert 0.5 * STALL_AFTER < taken < STALL_AFTER + 0.2


def test_a_stopped_process_is_replaced_within_stall_after(stage: Stage) -> None:
    with stage.world:
        assert stage.world.run(stage.takes(SimulatedPage.suspend, within=30.0)) < STALL_AFTER + 0.2


def test_when_the_engine_dies_the_next_one_elects(stage: Stage) -> None:
    async def main() -> float:
        await stage.ready()
        stage.browser.pages["host"].crash()
        before = stage.world.loop.time()
        await stage.world.until(lambda: stage.leader() is None, within=1.0, step=0.001)
        await stage.world.until(lambda: stage.leader() is not None, within=10.0)
        return stage.world.loop.time() - before

    with stage.world:
        assert stage.world.run(main()) < 2.0  # most of it is the boot of the next engine
