"""A simulated page that runs its own engine, and what tests ask of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from kit import APP
from tabhelm import JoinedTab, LeaderContext, LeadershipPolicy, Leading
from tabhelm.host.joined import Joining
from tabhelm.host.page import JoinOptions, PageHost
from tabhelm.leadership import Election
from tabhelm.ports import LockSnapshot, Ports
from tabhelm.simulated import SimulatedAgent, World
from tabhelm.simulated.lifecycle import SimulatedLifecycle

SEEDS = range(8)


class Memory:
    """sessionStorage, and what this one page has of it."""

    def __init__(self, stored: dict[str, tuple[str, int]]) -> None:
        self.stored = stored
        self.ours: set[str] = set()

    def read(self) -> tuple[str, int] | None:
        known = self.stored.get("tab")
        return None if known is None or known[0] in self.ours else known

    def write(self, tab_id: str, generation: int) -> None:
        if "tab" not in self.stored or self.stored["tab"][0] not in self.ours - {tab_id}:
            self.stored["tab"] = (tab_id, generation)
        self.ours.add(tab_id)

    def release(self, tab_id: str) -> None:
        self.ours.discard(tab_id)


@dataclass
class Page:
    """One page with an interpreter of its own. ``runs`` are the epochs in which its loop ran."""

    world: World
    agent: SimulatedAgent
    ports: Ports
    lifecycle: SimulatedLifecycle
    memory: Memory
    runs: list[int] = field(default_factory=list)
    contexts: list[LeaderContext] = field(default_factory=list)
    others: list[SimulatedLifecycle] = field(default_factory=list)
    """What further joins of the same page listen to."""

    def joining(self, **options: Any) -> Joining:
        lifecycle = self.lifecycle
        if lifecycle.listened_to:
            lifecycle = SimulatedLifecycle(self.agent)
            self.others.append(lifecycle)

        async def enter() -> JoinedTab:
            host = PageHost(self.ports, lifecycle, self.memory, JoinOptions(app=APP, **options))
            await host.enter()
            return JoinedTab(host, "window")

        return Joining(enter)

    async def join(self, **options: Any) -> JoinedTab:
        async def run() -> JoinedTab:
            return await self.joining(**options)

        return await self.agent.start(run())

    def call(self, function: Callable[[], Any]) -> Any:
        return self.agent.call(function)

    def lead(self, tab: JoinedTab, resource: str = "r", loop: Any = None, **policy: Any) -> Election:
        async def wait(context: LeaderContext) -> None:
            self.runs.append(context.epoch or 0)
            self.contexts.append(context)
            while True:
                await context.sleep(1.0)

        return self.call(lambda: tab.lead(resource, loop or wait, policy=LeadershipPolicy(**policy)))  # type: ignore[no-any-return]

    async def locks(self) -> LockSnapshot:
        return await self.agent.start(self.ports.locks.query())


def open_page(world: World, name: str, stored: dict[str, tuple[str, int]] | None = None) -> Page:
    agent = world.agent(name)
    memory = Memory({} if stored is None else stored)
    return Page(world, agent, world.ports(agent), SimulatedLifecycle(agent), memory)


async def led_by(world: World, election: Election, *, within: float = 30.0) -> Leading:
    await world.until(lambda: isinstance(election.status, Leading), within=within)
    assert isinstance(election.status, Leading)
    return election.status


def run(seed: int, test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    with World(seed) as world:
        world.run(test(world))


def held_by(world: World, agent: SimulatedAgent) -> list[str]:
    """What the browser's lock manager says that an agent holds or waits for, at this moment."""
    snapshot = world.lock_manager.snapshot()
    return sorted(lock.name for lock in (*snapshot.held, *snapshot.pending) if lock.client_id == agent.name)


async def lets_go(world: World, page: Page) -> None:
    """The page keeps no lock and waits for none, as soon as its messages have arrived."""
    await world.until(lambda: held_by(world, page.agent) == [], within=0.2)
