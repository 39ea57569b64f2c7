"""Tabs without pages in a simulated browser: what a window host will be, and the shortest way to the real core."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tabhelm.election import LeadershipPolicy
from tabhelm.leadership import Election, LeaderContext, Leading
from tabhelm.names import engine_lock
from tabhelm.observe import EpochIssued
from tabhelm.ports import PageState, Ports
from tabhelm.presence import Identity
from tabhelm.services import Services
from tabhelm.simulated import SimulatedAgent, World
from tabhelm.tab import Tab, TabFacts

APP = "app"


@dataclass
class Member:
    """One tab with an engine of its own."""

    world: World
    agent: SimulatedAgent
    ports: Ports
    services: Services
    tab: Tab
    led: list[int] = field(default_factory=list)
    """Epochs in which this tab's loop ran."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.agent.call(function, *args)

    def lead(self, resource: str = "r", loop: Any = None, **policy: Any) -> Election:
        async def wait(context: LeaderContext) -> None:
            self.led.append(context.epoch or 0)
            while True:
                await context.sleep(1.0)

        return self.call(lambda: self.tab.lead(resource, loop or wait, policy=LeadershipPolicy(**policy)))  # type: ignore[no-any-return]

    def set(self, **state: Any) -> None:
        """Change lifecycle, visibility or network as the page would say."""
        self.call(lambda: self.tab.set_state(replace(self.tab.state, **state)))

    def freeze(self) -> None:
        """What the lock desk and the page's freeze handler do, then really stop."""
        self.call(lambda: self.ports.locks.drop(self.tab.identity.connection_id))
        self.set(lifecycle="frozen")
        self.agent.freeze()

    def thaw(self) -> None:
        self.agent.thaw()
        self.call(lambda: self.ports.locks.admit(self.tab.identity.connection_id))
        self.set(lifecycle="active")

    @property
    def leading(self) -> bool:
        return self.agent.alive and any(isinstance(e.status, Leading) for e in self.tab.elections.values())

    @property
    def grants(self) -> list[EpochIssued]:
        return [event for event in self.services.events.recent if isinstance(event, EpochIssued)]


def join(
    world: World,
    name: str,
    *,
    confirm: Callable[[Election], Awaitable[bool]] | None = None,
    protocol: int = 1,
    in_page: bool = False,
    **facts: Any,
) -> Member:
    """Let a tab with an engine of its own join."""
    agent = world.agent(name)
    ports = world.ports(agent)
    # An engine holds this lock before anybody hears of it.
    agent.start(ports.locks.acquire(engine_lock(APP, protocol, f"e-{name}")))

    def make() -> tuple[Services, Tab]:
        services = Services(ports, APP, protocol, f"e-{name}", in_page=in_page)
        ports.locks.admit(f"c-{name}")
        identity = Identity(f"t-{name}", f"c-{name}", 1)
        tab = Tab(services, identity, TabFacts(**facts), PageState("active"), confirm)
        return services, tab

    services, tab = agent.call(make)
    return Member(world, agent, ports, services, tab)


async def one_leader(world: World, members: list[Member], *, within: float = 30.0) -> Member:
    """Wait until exactly one of the members leads, and return it."""
    await world.until(lambda: sum(m.leading for m in members) == 1, within=within)
    return next(m for m in members if m.leading)
