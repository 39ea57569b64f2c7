"""A simulated browser: one origin, its processes, agents, locks, channels, storage and network, from one seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from tabhelm.ports import Ports
from tabhelm.simulated.channel import ChannelHub, SimulatedChannels
from tabhelm.simulated.clock import SimulatedClock
from tabhelm.simulated.database import SimulatedDatabases
from tabhelm.simulated.disk import Storage
from tabhelm.simulated.entropy import SimulatedEntropy
from tabhelm.simulated.faults import Faults, Span, draw
from tabhelm.simulated.http import Network, SimulatedHttp
from tabhelm.simulated.locks import LockManager, SimulatedLocks
from tabhelm.simulated.loop import Agent, SimulatedLoop, SimulationError, settle
from tabhelm.simulated.storage import SimulatedStorage

T = TypeVar("T")


class Process:
    """An operating-system process of the browser: what dies, hangs or is stopped together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.agents: list[SimulatedAgent] = []

    def crash(self) -> None:
        """Kill all agents in it."""
        for agent in list(self.agents):
            agent.die()


class SimulatedAgent(Agent):
    """A page's or worker's event loop, with its own clock, connectivity and hooks for its end."""

    def __init__(self, world: World, name: str, process: Process, *, offset: float, rate: float) -> None:
        super().__init__(world.loop, name)
        self.world = world
        self.process = process
        self.clock = SimulatedClock(self, offset=offset, rate=rate)
        self.online = True
        self.on_death: list[Callable[[], None]] = []
        """Called by the browser (outside the agent) when the agent dies: locks let go, transactions abort."""
        self.evict: Callable[[], None] | None = None
        """Set while the agent sits in the back/forward cache: what contention on its locks or a message does to it."""
        process.agents.append(self)

    def die(self) -> None:
        if not self.alive:
            return
        super().die()
        self.evict = None
        self.process.agents.remove(self)
        self.world.note(self.name, "dead")
        for hook in self.on_death:
            hook()


class Pipe:
    """Messages in order, each after a seeded delay, even when their sender is gone."""

    def __init__(self, world: World, rng: Random, span: Callable[[], Span]) -> None:
        self._loop = world.loop
        self._rng = rng
        self._span = span
        self._last = 0.0

    def send(self, deliver: Callable[..., object], *args: Any) -> None:
        self._last = max(self._last, self._loop.time() + draw(self._rng, self._span()))
        self._loop.call_at(self._last, deliver, *args, context=self._loop.root.context())


class World:
    """Everything of one origin in one browser. ``trace`` tells what happened; ``close`` raises what nobody handled."""

    def __init__(self, seed: int | str = 0, *, faults: Faults | None = None, max_steps: int = 20_000_000) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(seed, max_steps=max_steps)
        self.faults = faults or Faults()
        self.trace: list[str] = []
        self.agents: dict[str, SimulatedAgent] = {}
        self.rng = self.stream("world")
        self.lock_manager = LockManager(self)
        self.channel_hub = ChannelHub(self)
        self.storage = Storage(self)
        self.network = Network(self)

    def stream(self, name: str) -> Random:
        """A generator of its own, so that one part's draws do not move another's."""
        return Random(f"{self.seed}:{name}")

    def pipe(self, name: str, span: Callable[[], Span]) -> Pipe:
        """An ordered, delayed way; ``span`` is asked at each message, so that faults may change."""
        return Pipe(self, self.stream(f"pipe:{name}"), span)

    def note(self, who: str, what: str) -> None:
        """Add to the trace."""
        self.trace.append(f"{self.loop.time():.6f} {who} {what}")

    def process(self, name: str) -> Process:
        return Process(name)

    def agent(
        self, name: str, process: Process | None = None, *, offset: float | None = None, rate: float | None = None
    ) -> SimulatedAgent:
        """Start an agent. Its clock begins anywhere and runs up to 0.1 % fast or slow unless told."""
        if name in self.agents:
            raise SimulationError(f"there is already an agent {name!r}")
        rng = self.stream(f"clock:{name}")
        agent = SimulatedAgent(
            self,
            name,
            process or Process(name),
            offset=rng.uniform(0.0, 10_000.0) if offset is None else offset,
            rate=rng.uniform(0.999, 1.001) if rate is None else rate,
        )
        self.loop.adopt(agent)
        self.agents[name] = agent
        return agent

    def ports(self, agent: SimulatedAgent) -> Ports:
        """The agent's whole browser. Ask once per agent: locks are grouped by owner inside."""
        return Ports(
            clock=agent.clock,
            entropy=SimulatedEntropy(self.stream(f"entropy:{agent.name}")),
            locks=SimulatedLocks(self.lock_manager, agent),
            channels=SimulatedChannels(self.channel_hub, agent),
            databases=SimulatedDatabases(self.storage, agent),
            http=SimulatedHttp(self.network, agent),
            storage=SimulatedStorage(self.storage),
        )

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the test itself."""
        future: asyncio.Future[None] = self.loop.create_future()
        handle = self.loop.call_later(seconds, settle, future, None)
        try:
            await future
        finally:
            handle.cancel()

    async def until(self, condition: Callable[[], bool], *, within: float = 60.0, step: float = 0.005) -> None:
        """Wait until the condition holds, looking every ``step`` virtual seconds.

        Raises:
            TimeoutError: it did not hold ``within`` so many virtual seconds.
        """
        end = self.loop.time() + within
        while not condition():
            if self.loop.time() >= end:
                raise TimeoutError(f"the condition did not hold within {within} virtual seconds (seed {self.seed!r})")
            await self.sleep(step)

    def run(self, coroutine: Coroutine[Any, Any, T] | asyncio.Future[T], *, limit: float = 86_400.0) -> T:
        """Run a test in this world; see ``SimulatedLoop.run``."""
        return self.loop.run(coroutine, limit=limit)

    def power_cut(self) -> None:
        """Every agent dies and storage loses the tail of what was not strictly durable."""
        for agent in list(self.agents.values()):
            agent.die()
        self.storage.power_cut()

    def close(self, *, check: bool = True) -> None:
        """End the world.

        Raises:
            SimulationError: a task or callback failed and nobody handled it (with ``check``).
        """
        if not self.loop.is_closed():
            self.loop.dispose()
        if check and self.loop.errors:
            raise SimulationError("unhandled in the simulation:\n" + "\n".join(self.loop.errors))

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: object, _value: object, _trace: object) -> None:
        self.close(check=kind is None)
