"""A simulated page: what the app does in it, and what happens to it, freezing and the bfcache included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tabhelm.simulated.engine import SimulatedEngine
from tabhelm.simulated.messageport import MessagePort
from tabhelm.simulated.pagelink import Settings
from tabhelm.simulated.pagelocks import Body, PageLocks, PageRequest
from tabhelm.simulated.pagequeue import PageQueue, Send
from tabhelm.simulated.pagesession import Session
from tabhelm.simulated.pagework import Loop, PageElection
from tabhelm.simulated.world import Process

if TYPE_CHECKING:
    from tabhelm.simulated.browser import SimulatedBrowser, Worker

THROTTLED = 65.0
"""Seconds: the timers of a hidden page may fire once a minute only."""


class SimulatedPage:
    """One document in one tab. ``agent`` is its main thread; methods without ``async`` act at once."""

    def __init__(
        self, browser: SimulatedBrowser, name: str, settings: Settings, storage: dict[str, Any], process: Process | None
    ) -> None:
        self.browser = browser
        self.name = name
        self.settings = settings
        self.storage = storage
        """The tab's sessionStorage."""
        self.agent = browser.world.agent(name, process)
        self.ports = browser.world.ports(self.agent)
        self.worker: Worker | None = None
        """The shared engine that it connected to last."""
        self.own_engines: dict[str, SimulatedEngine] = {}
        """In the window host: the engines in this page, by name."""
        self._shown_at = float("-inf")
        self.events: list[dict[str, Any]] = []
        self.presence: dict[str, Any] = {}
        self.elections: dict[str, PageElection] = {}
        self.queues: dict[str, PageQueue] = {}
        self.session = Session(self.agent, self.ports, settings, storage, self)
        self.locks = PageLocks(self.session)
        self._offers: dict[str, int] = {}
        self._made = 0
        self._started = False
        self.agent.on_death.append(lambda: browser.client_gone(self))

    def __repr__(self) -> str:
        return f"<SimulatedPage {self.name} {self.agent.state}>"

    @property
    def tab_id(self) -> str:
        return self.session.tab_id

    @property
    def alive(self) -> bool:
        return self.agent.alive

    @property
    def cached(self) -> bool:
        return self.agent.evict is not None

    @property
    def engine(self) -> SimulatedEngine | None:
        """The engine that it connected to last."""
        if self.worker is not None:
            return self.worker.engine
        return list(self.own_engines.values())[-1] if self.own_engines else None

    # ---- what the app does ------------------------------------------------------------------------------------------

    async def join(self) -> SimulatedPage:
        """Join, or wait until the running attempt succeeded."""
        self.begin_join()
        await self.session.ready
        return self

    def begin_join(self) -> None:
        """Join without waiting."""
        if not self._started:
            self._started = True
            self.agent.call(self.session.start)

    def lead(
        self, resource: str, loop: Loop, policy: dict[str, Any] | None = None, *, scope: str | None = None
    ) -> PageElection:
        """Stand for a resource; ``loop(ctx)`` runs in the page while it leads. Policy keys as on the wire."""
        self._made += 1
        election = PageElection(self.session, f"e{self._made}", resource, scope, loop, policy or {})
        self.elections[election.id] = election
        self.agent.call(election.open)
        return election

    def queue(
        self,
        name: str,
        *,
        scope: str | None = None,
        send: Send | None = None,
        headers: Callable[[], Awaitable[dict[str, str]]] | None = None,
        **options: Any,
    ) -> PageQueue:
        """Open a queue. Options as on the wire, but for the page's functions; ``each=True``: ``send`` is given one
        operation at a time."""
        self._made += 1
        queue = PageQueue(self.session, f"q{self._made}", name, scope, options, send, headers)
        self.queues[queue.handle] = queue
        self.agent.call(queue.open)
        return queue

    def lock(self, name: str, body: Body, **options: Any) -> PageRequest:
        """``await body(lock)`` while the page holds the lock. Options as on the wire."""
        return self.locks.lock(name, body, **options)

    def single_flight(self, key: str, work: Body, **options: Any) -> PageRequest:
        """One page does it for all that ask meanwhile."""
        return self.locks.single_flight(key, work, **options)

    def update(self, **changes: Any) -> None:
        """``userSession`` or ``capabilities``, as a page says them."""
        if "userSession" in changes:
            changes["userSession"] = changes["userSession"] or ""  # signed out, which is not the same as never told
        self.settings = self.session.settings = replace(
            self.settings,
            user_session=changes.get("userSession", self.settings.user_session),
            capabilities=changes.get("capabilities", self.settings.capabilities),
        )
        self.agent.call(self.session.post, {"type": "update", **changes})

    def leave(self, reason: str = "left") -> None:
        """Leave; the page itself lives on."""
        self.agent.call(self.session.leave, reason)

    def diagnose(self) -> asyncio.Task[Any]:
        return self.agent.start(self.session.call("diagnose", {}, once=True))

    # ---- what happens to it -----------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """The browser freezes the page: its ``freeze`` handler runs, then it stands still. Not while it hangs."""
        if self.agent.state == "running":
            self._note("freeze")
            self.agent.call(self.session.freeze)
            self.agent.freeze()

    def thaw(self) -> None:
        """The browser resumes it; the ``resume`` event comes before or after what was parked."""
        if self.agent.alive and self.agent.frozen:
            self._note("thaw")
            if self.browser.rng.random() < 0.5:
                self.agent.thaw()
                self.agent.call(self.session.resume)
            else:
                self.agent.post(self.session.resume)
                self.agent.thaw()

    def hang(self, seconds: float) -> None:
        """The main thread computes without pause: no event, no answer."""
        self._note(f"hang for {seconds} s")
        self.agent.hang(seconds)

    def suspend(self) -> None:
        """SIGSTOP to its whole process: the truest freeze, without any event. Undo with ``unsuspend``."""
        self._note("suspend")
        for agent in self.agent.process.agents:
            agent.stop()

    def unsuspend(self) -> None:
        self._note("unsuspend")
        for agent in self.agent.process.agents:
            agent.go()

    def crash(self) -> None:
        """Its process dies, with every page and engine in it."""
        self._note("crash")
        self.agent.process.crash()

    def close(self) -> None:
        """The user closes the tab: ``pagehide`` runs if the page can still run, then it is gone."""
        self._note("close")
        if self.agent.state == "running":
            self._hide()
        self.agent.die()

    def navigate_away(self) -> None:
        """To another site: ``pagehide`` with ``persisted``, then the page rests in the back/forward cache."""
        if self.agent.state == "running":
            self._note("into the bfcache")
            self._hide()
            self.agent.evict = self.agent.die
            self.agent.stop()
            self.browser.look_at_engines()

    def back(self) -> None:
        """The user comes back: restored with all its memory, it joins again. Nothing happens if it was evicted."""
        if self.agent.alive and self.cached:
            self._note("back from the bfcache")
            self.agent.evict = None
            self.agent.go()
            self.browser.look_at_engines()
            self.agent.call(self.session.come_back)
            for engine in self.own_engines.values():
                self.agent.call(engine.resume)

    def _hide(self) -> None:
        """``pagehide``, whose handlers do all they have to do before it is over."""
        self.agent.call(self.session.depart, "pagehide")
        for engine in self.own_engines.values():
            self.agent.call(engine.suspend, "pagehide")

    def offline(self, off: bool) -> None:
        """This page alone loses (or regains) its network."""
        self.agent.online = not off
        self.agent.post(self.session.tell_state)

    def show(self, visible: bool) -> None:
        """Bring the tab to the front, or hide it (its timers then fire once a second)."""
        if visible and not self.session.visible:
            self._shown_at = self.ports.clock.monotonic()
        self.session.visible = visible
        self.agent.clock.throttled = not visible
        self.agent.post(self.session.tell_state)

    def duplicate(self, name: str) -> SimulatedPage:
        """A duplicated tab: a copy of the sessionStorage, in the same process or another."""
        process = self.agent.process if self.browser.rng.random() < 0.5 else None
        return self.browser.open(name, self.settings, storage=dict(self.storage), process=process)

    def reload(self, name: str) -> SimulatedPage:
        """The same tab with a new document, which may begin before the old one is quite gone."""
        page = self.browser.open(name, self.settings, storage=self.storage)
        if self.agent.state == "running":
            self._hide()
        world = self.browser.world
        world.loop.call_later(self.browser.rng.uniform(0.0, 0.2), self.agent.die, context=world.loop.root.context())
        return page

    # ---- called by the session --------------------------------------------------------------------------------------

    def on_up(self) -> None:
        for election in self.elections.values():
            election.open()
        for queue in self.queues.values():
            queue.open()
        self.locks.look()

    def on_down(self, reason: str) -> None:
        self._offers.clear()
        for election in self.elections.values():
            election.down(reason)
        for queue in self.queues.values():
            queue.down(reason)
        self.locks.down(reason)

    def on_doubt(self) -> None:
        for election in self.elections.values():
            election.doubt()

    def on_heard(self) -> None:
        for election in self.elections.values():
            election.consider()
        self._accept_offers()

    def connect(self, name: str) -> MessagePort:
        return self.browser.connect(self, name)

    def patience(self, limit: float, since: float) -> float:
        """How late it may be: in the window host, a hidden page whose timers are held back has not stood still."""
        hidden = not self.session.visible or self._shown_at >= since
        return max(limit, THROTTLED) if self.settings.host == "window" and hidden else limit

    def receive(self, data: dict[str, Any]) -> None:
        kind = data.get("type")
        if kind in ("grant", "lead", "revoke", "status"):
            election = self.elections.get(data["election"])
            if election is not None:
                election.receive(data)
            elif kind == "grant":
                # A loop that runs in the engine (a queue's flusher) still needs a page that can work.
                self._offers[data["election"]] = data["grant"]
                self._accept_offers()
        elif kind == "leader":
            for election in self.elections.values():
                if data.get("election") in (None, election.id) and election.key == data["resource"]:
                    election.leader = data["leader"]
        elif kind == "queue-stats" and data["queue"] in self.queues:
            self.queues[data["queue"]].last_stats = data.get("stats") or {}
        elif kind in ("send", "headers", "unsend") and data["queue"] in self.queues:
            self.queues[data["queue"]].asked(data)
        elif kind == "lock":
            self.locks.told(data)
        elif kind == "presence":
            self.presence = data
        elif kind == "event":
            self.events.append(data["event"])

    def _accept_offers(self) -> None:
        if self._offers and self.session.able():
            for election, grant in self._offers.items():
                self.session.post({"type": "ack", "election": election, "grant": grant})
            self._offers.clear()

    def _note(self, what: str) -> None:
        self.browser.world.note(self.name, what)
