"""The simulated browser that runs pages: tabs, processes, SharedWorkers by name, who is suspended with whom."""

from __future__ import annotations

import functools
from typing import Any

from tabhelm.simulated.engine import EngineFactory, SimulatedEngine
from tabhelm.simulated.messageport import MessagePort
from tabhelm.simulated.page import SimulatedPage
from tabhelm.simulated.pagelink import Settings
from tabhelm.simulated.world import Process, SimulatedAgent, World


class SimulatedBrowser:
    """One browser in one world. ``factory`` starts the real core in each engine: ``tabhelm.host.engine.start``."""

    def __init__(self, world: World, factory: EngineFactory, *, boot: tuple[float, float] = (0.2, 1.0)) -> None:
        self.world = world
        self.factory = factory
        self.boot = boot
        """Seconds that an engine needs until Python is there (least, greatest)."""
        self.pages: dict[str, SimulatedPage] = {}
        self.engines: list[Worker] = []
        """Every engine that was ever started; the living ones have a living agent."""
        self.rng = world.stream("browser")
        self._connections = 0

    def open(
        self,
        name: str,
        settings: Settings | None = None,
        *,
        storage: dict[str, Any] | None = None,
        process: Process | None = None,
    ) -> SimulatedPage:
        """Open a tab, in a process of its own unless told otherwise."""
        page = SimulatedPage(self, name, settings or Settings(), storage if storage is not None else {}, process)
        self.pages[name] = page
        return page

    def offline(self, off: bool) -> None:
        """The device loses (or regains) its network: every page and engine notices."""
        for agent in self.world.agents.values():
            agent.online = not off
        for page in self.pages.values():
            page.agent.post(page.session.tell_state)

    def living_engines(self) -> list[Worker]:
        return [worker for worker in self.engines if worker.engine.agent.alive]

    def connect(self, page: SimulatedPage, name: str) -> MessagePort:
        """``new SharedWorker(url, {name})``, or what the window host does instead."""
        if page.settings.host == "window":
            return self._connect_in_page(page, name)
        worker = next((each for each in self.living_engines() if each.name == name), None)
        if worker is None:
            worker = self._start_worker(page, name)
        worker.clients[page] = None
        page.worker = worker
        self._connections += 1
        theirs, ours = MessagePort.pair(self.world, str(self._connections), page.agent, worker.engine.agent)
        agent, creator = worker.engine.agent, worker.creator
        connected = functools.partial(agent.post, worker.engine.connect, ours)
        if creator is not page.agent and creator.alive and creator.evict is None:
            # A new page is connected by the main thread of the creator's process: not while that hangs (measured).
            creator.post_event(connected)
        else:
            connected()
        return theirs

    def _connect_in_page(self, page: SimulatedPage, name: str) -> MessagePort:
        engine = page.own_engines.get(name)
        if engine is None or engine.failure is not None:
            settings = page.settings
            boot = self.rng.uniform(*self.boot)
            inside = (page.ports, page.patience)
            engine = SimulatedEngine(
                self.world, page.agent, settings.app, settings.protocol, settings.build, boot, inside
            )
            page.own_engines[name] = engine
            self.world.note(page.name, f"runs its own engine as {name}")
            page.agent.start(engine.run(self.factory))
        self._connections += 1
        theirs, ours = MessagePort.pair(self.world, str(self._connections), page.agent, page.agent, direct=True)
        engine.connect(ours)
        return theirs

    def client_gone(self, page: SimulatedPage) -> None:
        """A page is no more: an engine without pages ends; one whose pages are all cached is suspended."""
        for worker in self.living_engines():
            worker.clients.pop(page, None)
            if not worker.clients:
                worker.engine.agent.die()
        self.look_at_engines()

    def look_at_engines(self) -> None:
        """Suspend each engine whose pages are all in the back/forward cache (after 5 to 12 ms), resume the others."""
        for worker in self.living_engines():
            cached = all(page.cached for page in worker.clients)
            if cached and not worker.suspended:
                worker.suspended = True
                delay = self.rng.uniform(0.005, 0.012)
                self.world.loop.call_later(delay, worker.suspend, context=self.world.loop.root.context())
            elif not cached and worker.suspended:
                worker.resume()

    def _start_worker(self, page: SimulatedPage, name: str) -> Worker:
        settings = page.settings
        agent = self.world.agent(f"engine{len(self.engines) + 1}", page.agent.process)
        agent.online = page.agent.online
        boot = self.rng.uniform(*self.boot)
        engine = SimulatedEngine(self.world, agent, settings.app, settings.protocol, settings.build, boot)
        worker = Worker(name, engine, page.agent)
        self.engines.append(worker)
        self.world.note(agent.name, f"started by {page.name} as {name}")
        agent.start(engine.run(self.factory))
        return worker


class Worker:
    """A SharedWorker in the browser's books."""

    def __init__(self, name: str, engine: SimulatedEngine, creator: SimulatedAgent) -> None:
        self.name = name
        self.engine = engine
        self.creator = creator
        self.clients: dict[SimulatedPage, None] = {}
        self.suspended = False
        self._stopped = False

    def suspend(self) -> None:
        if self.suspended and not self._stopped:
            self._stopped = True
            self.engine.agent.stop()

    def resume(self) -> None:
        self.suspended = False
        if self._stopped:
            self._stopped = False
            self.engine.agent.go()
