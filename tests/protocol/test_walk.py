"""A seeded random walk through everything that can happen to tabs, engines, network and storage; then quiescence, in
which everything acknowledged must have been applied exactly once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab import MORE, Lab, Tab

from tabhelm.simulated import Faults
from tabhelm.testing.verdict import Verdict

SEEDS = 24 * MORE
CALM = 90.0
"""Virtual seconds without trouble at the end: more than stall, cool-down, backoff and send timeout together."""


class Walk:
    """Four to six tabs of two bundle builds (so at least two engines), a job behind a barrier and an offline queue."""

    def __init__(self, seed: int, *, wipes: bool = False) -> None:
        self.lab = Lab(seed)
        self.rng = self.lab.rng
        self.opened = 0
        self.believers: tuple[str, ...] = ()
        self.both: list[str] = []
        self.steps: list[tuple[int, Callable[[], None]]] = [
            (5, self.freeze), (5, self.thaw), (3, self.hang), (2, self.crash), (2, self.close), (3, self.away),
            (4, self.back), (3, self.offline), (2, self.lose), (1, self.kill_engine), (1, self.suspend),
            (1, self.weather),
        ]  # fmt: skip
        if wipes:
            self.steps.append((2, self.lab.wipe))
        self.lab.register.echo = lambda: self.rng.uniform(0.0, 5.0) if self.rng.random() < 0.05 else None
        self.lab.world.loop.after_step = self.watch

    def run(self) -> Verdict:
        verdict = self.lab.run(self.play())
        assert self.both == [], f"seed {self.lab.world.seed}: {self.both}"
        return verdict

    async def play(self) -> None:
        lab = self.lab
        self.weather()
        for _ in range(self.rng.randint(4, 6)):
            self.open()
        await lab.sleep(2.0)
        for _ in range(25):
            for tab in lab.tabs:
                if tab.page.agent.state == "running" and self.rng.random() < 0.7:
                    lab.enqueue(tab, self.rng.choice("abc"))
            weights = [weight for weight, _ in self.steps]
            (step,) = self.rng.choices([step for _, step in self.steps], weights)
            step()
            while sum(tab.page.alive for tab in lab.tabs) < 4:
                self.open()
            await lab.sleep(self.rng.choice([0.0, 0.001, 0.01, 0.3, 2.0, 12.0]))
        await self.calm()

    async def calm(self) -> None:
        lab = self.lab
        lab.world.faults = Faults()
        for tab in lab.tabs:
            tab.page.thaw()
            tab.page.back()
        lab.browsers[0].offline(False)
        await lab.sleep(CALM)
        await lab.settled()
        acting = [tab.page.name for tab in lab.tabs if tab.page.alive and tab.election and tab.election.acting]
        assert len(acting) == 1, f"seed {lab.world.seed}: {acting} lead in quiescence"
        failures = [each for tab in lab.tabs if tab.election for each in tab.election.failures]
        assert failures == [], f"seed {lab.world.seed}"

    def watch(self) -> None:
        """After every step: never two pages that believe to lead and can write, while their engines live."""
        believers = tuple(
            tab.page.name
            for tab in self.lab.tabs
            if tab.election is not None
            and tab.election.acting
            and tab.page.agent.state == "running"
            and tab.page.worker is not None
            and tab.page.worker.engine.agent.alive
        )
        if believers != self.believers:
            self.believers = believers
            if len(believers) > 1:
                self.both.append(f"{self.lab.world.loop.time():.6f}: {believers}")

    # -- what happens -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.opened += 1
        writer = self.lab.writer(thinking=self.rng.choice([0.0, 0.0, 4.0]))
        build = "one" if self.opened % 2 else "two"
        self.lab.tab(f"t{self.opened}", build=build, lead=True, queue=True, loop=writer)

    def some(self, *states: str) -> Tab | None:
        fitting = [tab for tab in self.lab.tabs if tab.page.agent.state in states and not tab.page.cached]
        leading = [tab for tab in fitting if tab.election is not None and tab.election.acting]
        if leading and self.rng.random() < 0.5:
            return leading[0]
        return self.rng.choice(fitting) if fitting else None

    def weather(self) -> None:
        """How slow and how lossy everything is until the next change."""
        draw = self.rng.choice
        self.lab.world.faults = Faults(
            lock_delay=(0.0, draw([0.003, 0.05])),
            channel_delay=(0.0, draw([0.005, 0.5])),
            channel_loss=draw([0.0, 0.05, 0.5]),
            database_delay=(0.0, draw([0.002, 0.05])),
            commit_delay=(0.0, draw([0.004, 0.2])),
            http_delay=(0.001, draw([0.05, 5.0])),
            http_lose_request=draw([0.0, 0.1]),
            port_delay=(0.0, draw([0.003, 0.1])),
        )

    def freeze(self) -> None:
        if tab := self.some("running"):
            tab.page.freeze()

    def thaw(self) -> None:
        if tab := self.some("frozen"):
            tab.page.thaw()

    def hang(self) -> None:
        if tab := self.some("running"):
            tab.page.hang(self.rng.choice([0.5, 5.0, 9.5, 12.0, 30.0]))

    def suspend(self) -> None:
        """Its whole process stands still, engine and all."""
        if tab := self.some("running"):
            tab.page.suspend()
            loop = self.lab.world.loop
            loop.call_later(self.rng.uniform(0.0, 30.0), tab.page.unsuspend, context=loop.root.context())

    def crash(self) -> None:
        if tab := self.some("running"):
            tab.page.crash()

    def close(self) -> None:
        if tab := self.some("running", "frozen"):
            tab.page.close()

    def away(self) -> None:
        if tab := self.some("running"):
            tab.page.navigate_away()

    def back(self) -> None:
        cached = [tab for tab in self.lab.tabs if tab.page.cached]
        if cached:
            self.rng.choice(cached).page.back()

    def offline(self) -> None:
        self.lab.browsers[0].offline(self.rng.random() < 0.5)

    def lose(self) -> None:
        """From now on, or no more, answers are lost."""
        self.lab.world.faults.http_lose_answer = self.rng.choice([0.0, 0.3])

    def kill_engine(self) -> None:
        engines = self.lab.browsers[0].living_engines()
        if engines:
            self.rng.choice(engines).engine.agent.die()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_everything_acknowledged_is_applied_exactly_once(seed: int) -> None:
    verdict = Walk(seed).run()
    assert verdict.acknowledged > 10 and verdict.wiped == verdict.dead == []


@pytest.mark.parametrize("seed", range(1000, 1000 + SEEDS // 2))
def test_with_storage_wiped_now_and_then(seed: int) -> None:
    Walk(seed, wipes=True).run()


def test_a_seed_replays_exactly() -> None:
    walks = [Walk(7), Walk(7), Walk(8)]
    for walk in walks:
        walk.run()
    first, again, other = (walk.lab.world for walk in walks)
    assert (first.loop.digest, first.trace) == (again.loop.digest, again.trace)
    assert first.loop.digest != other.loop.digest
