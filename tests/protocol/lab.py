"""One run of the real core in a simulated world, with every log that the history checker needs.

Devices are whole browsers of their own (processes, locks, channels, storage); they share time and the network. Two
receivers stand there: one behind the offline queue, which knows operation ids, and a *register*, which knows none: it
applies whatever an accepted token brings, so that there the token alone protects.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from tabhelm.errors import Unreachable
from tabhelm.fencing import FencingToken
from tabhelm.fencing.refusal import refused_high_water
from tabhelm.fencing.schema import FENCING
from tabhelm.host.engine import start
from tabhelm.ports.http import HttpAnswer
from tabhelm.simulated import (
    Faults,
    HttpRequest,
    NextAnswer,
    PageContext,
    PageElection,
    PageQueue,
    Settings,
    SimulatedBrowser,
    SimulatedPage,
    SimulatedReceiver,
    World,
)
from tabhelm.simulated.disk import Stored
from tabhelm.simulated.receiver import Guard
from tabhelm.simulated.records import Bounds
from tabhelm.testing.history import History
from tabhelm.testing.verdict import Verdict

_ALL = Bounds(None)
URL = "https://receiver.example/"
OPERATIONS = URL + "operations"
REGISTER = URL + "register"
DATABASE = "tabhelm:app"
MORE = int(os.environ.get("TABHELM_PROTOCOL_SEEDS", "1"))
"""Multiplies the number of seeds of every schedule, for a long search."""


def seeds(count: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seed", range(count * MORE))


class Refused(Exception):
    """The register knows a newer owner: the loop ends, and another tenure begins above it."""


class Register(SimulatedReceiver):
    """A receiver without operation ids: it applies whatever comes with a token that its guard accepts."""

    echo: Callable[[], float | None] = staticmethod(lambda: None)
    """Asked at each request: the seconds until the network delivers it a second time, ``None`` for never."""

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        answer = await super().handle(request)
        delay = self.echo()
        if delay is not None:
            loop = self._world.loop
            context = loop.root.context()
            again = super().handle
            loop.call_later(delay, lambda: loop.create_task(again(request), context=context), context=context)
        return answer

    def _one(self, subject: str, token: FencingToken, operation: dict[str, Any]) -> dict[str, str]:
        self._known.clear()
        return super()._one(subject, token, operation)


class Device(World):
    """Another browser: everything of its own but time and the network."""

    def __init__(self, first: World, name: str) -> None:
        super().__init__(f"{first.seed}/{name}", faults=first.faults)
        self.loop.close()
        self.loop = first.loop
        self.network = first.network
        self.trace = first.trace
        self._prefix = name

    def note(self, who: str, what: str) -> None:
        super().note(f"{self._prefix}/{who}", what)


@dataclass
class Tab:
    page: SimulatedPage
    election: PageElection | None = None
    queue: PageQueue | None = None
    asked: int = 0


class Lab:
    """Tabs, devices, receivers and the history of one run. ``run`` plays a schedule and returns the verdict."""

    def __init__(
        self, seed: int | str, *, faults: Faults | None = None, guard: Callable[[], Guard] | None = None
    ) -> None:
        self.world = World(seed, faults=faults)
        self.rng = self.world.stream("schedule")
        self.history = History()
        self.receiver = SimulatedReceiver(self.world, OPERATIONS, guard=guard() if guard else None)
        self.register = Register(self.world, REGISTER, guard=guard() if guard else None)
        self.browsers: list[SimulatedBrowser] = []
        self.worlds: list[World] = []
        self.tabs: list[Tab] = []
        self.writes = 0
        self.on_new_epoch: Callable[[FencingToken], None] = lambda token: None
        """Called when the register accepts the first token of an epoch: the worst moment for many things."""
        self.durable: set[tuple[str, str, int, str]] = set()
        """(domain, resource, epoch, owner) of every grant whose transaction is complete."""
        self.order: list[tuple[str, str, int, str]] = []
        """The same, in the order of issue."""
        self._enqueued: list[tuple[Tab, str, str, float, asyncio.Task[str]]] = []
        self._acked: dict[str, float] = {}
        self._records: dict[tuple[str, str], dict[str, Any]] = {}
        self._flushed: dict[SimulatedReceiver, int] = {self.receiver: 0, self.register: 0}
        self._newest: dict[str, int] = {}
        for each in (self.receiver, self.register):
            each.on_judged = lambda token, accepted, each=each: self._judged(each, token, accepted)  # type: ignore[misc]
        self.add_device(self.world)

    # -- the stage ----------------------------------------------------------------------------------------------------

    def add_device(self, world: World | None = None) -> SimulatedBrowser:
        """Another device, in whose browser the same user works (the first one is there from the start)."""
        store = f"device{len(self.worlds)}"
        world = world or Device(self.world, store)
        world.storage.on_commit = lambda stored, stores: self._committed(store, stored, stores)
        browser = SimulatedBrowser(world, start)
        self.worlds.append(world)
        self.browsers.append(browser)
        return browser

    def clone_profile(self, source: int, target: int) -> None:
        """Copy one device's storage to another: a restored backup, a cloned virtual machine."""
        for name, stored in self.worlds[source].storage.databases.items():
            twin = self.worlds[target].storage.stored(name)
            twin.version, twin.stores = stored.version, copy.deepcopy(stored.stores)
            for record in twin.stores[FENCING].select(_ALL, None):
                self._records[f"device{target}", record["key"]] = record

    def tab(
        self,
        name: str,
        *,
        device: int = 0,
        lead: bool = False,
        queue: bool = False,
        policy: dict[str, Any] | None = None,
        loop: Any = None,
        **settings: Any,
    ) -> Tab:
        """Open a tab that joins; ``lead``: it stands for the job of writing to the register behind a barrier."""
        page = self.browsers[device].open(name, Settings(**settings))
        page.begin_join()
        tab = Tab(page)
        if lead:
            tab.election = page.lead("job", loop or self.writer(), {"fence": REGISTER, **(policy or {})})
        if queue:
            tab.queue = page.queue("mutations", endpoint=OPERATIONS)
        self.tabs.append(tab)
        return tab

    def writer(self, *, pause: tuple[float, float] = (0.2, 2.0), thinking: float = 0.0, barrier: bool = True) -> Any:
        """A page loop that writes to the register; with a barrier, it ends when it is refused.

        ``thinking``: about so many seconds pass between token and request, without a look at the signal. Careless code
        does that, and the fence is for it.
        """

        async def loop(context: PageContext) -> None:
            if barrier:
                self.begun(context)
            while True:
                await context.sleep(self.rng.uniform(*pause))
                try:
                    await self.write(context, thinking)
                except Unreachable:
                    continue
                except Refused:
                    if barrier:
                        return

        return loop

    def begun(self, context: PageContext) -> None:
        """A loop with a barrier begins."""
        assert context.token is not None
        token = context.token
        self.history.began(
            FencingToken(token["domain"], token["resource"], token["epoch"], token["stream"], 1, token["owner"]),
            at=self.world.loop.time(),
        )

    async def write(self, context: PageContext, thinking: float = 0.0) -> None:
        """One protected write."""
        self.writes += 1
        headers = context.headers(f"w{self.writes}")
        ports = context.election.session.ports
        if thinking:
            await ports.clock.sleep(self.rng.uniform(thinking / 2, thinking))
            answer = await ports.http.send("POST", REGISTER, headers=headers, body="{}", timeout=30.0)
        else:
            answer = await context.fetch("POST", REGISTER, headers=headers, body="{}")
        mark = refused_high_water(answer)
        if mark is not None and (mark.epoch, mark.owner_id) != (context.epoch, context.token["owner"]):  # type: ignore[index]
            raise Refused

    def enqueue(self, tab: Tab, partition: str = "a") -> None:
        """One operation of this tab; logged when it is acknowledged, in the order of the calls."""
        assert tab.queue is not None
        op_id = f"{tab.page.name}-{tab.asked}"
        tab.asked += 1
        asked_at = self.world.loop.time()
        task = tab.queue.enqueue({"n": op_id}, partition=partition, op_id=op_id)
        self._enqueued.append((tab, op_id, partition, asked_at, task))
        task.add_done_callback(lambda _: self._acked.setdefault(op_id, self.world.loop.time()))

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self, schedule: Coroutine[Any, Any, None], *, limit: float = 3600.0, check: bool = True) -> Verdict:
        """Play the schedule, then judge. A failure names the seed; the same seed plays the same run again."""
        try:
            self.world.run(schedule, limit=limit)
        except BaseException as failure:
            failure.add_note(f"seed {self.world.seed!r}; end of the trace:\n" + "\n".join(self.world.trace[-40:]))
            raise
        finally:
            self.world.close(check=False)
        self._close_books()
        verdict = self.history.check()
        if check:
            assert not self.world.loop.errors, f"seed {self.world.seed!r}: {self.world.loop.errors}"
            verdict.require(f"seed {self.world.seed!r}")
        return verdict

    async def sleep(self, seconds: float) -> None:
        await self.world.sleep(seconds)

    async def until(self, condition: Callable[[], bool], within: float = 60.0) -> None:
        await self.world.until(condition, within=within)

    async def led(self, tab: Tab, within: float = 60.0) -> None:
        """Wait until this tab's loop runs."""
        assert tab.election is not None
        await self.until(lambda: tab.election.acting, within)  # type: ignore[union-attr]

    async def settled(self, within: float = 300.0) -> None:
        """Wait until nothing is queued any more."""
        await self.until(self.drained, within)

    def drained(self) -> bool:
        """Whether no device has operations that are neither applied nor dead."""
        return not any(self.records(world, "operations") for world in self.worlds)

    def records(self, world: World, store: str) -> list[dict[str, Any]]:
        stored = world.storage.databases.get(DATABASE)
        return stored.stores[store].select(_ALL, None) if stored is not None and stored.stores else []

    def wipe(self, device: int = 0) -> None:
        """The user clears the site's data."""
        self.worlds[device].storage.wipe()
        self.history.wiped(store=f"device{device}", at=self.world.loop.time())
        self._records = {key: record for key, record in self._records.items() if key[0] != f"device{device}"}

    def network(self, *answers: NextAnswer) -> None:
        """Faults for the coming requests, in order."""
        self.world.network.script.extend(answers)

    # -- the logs -----------------------------------------------------------------------------------------------------

    def _committed(self, store: str, stored: Stored, stores: tuple[str, ...]) -> None:
        if FENCING not in stores:
            return
        records = stored.stores[FENCING].select(_ALL, None)
        domain = next((record["domain"] for record in records if record["key"] == "domain"), "")
        for record in records:
            key = (store, record["key"])
            if not record["key"].startswith("epoch:") or self._records.get(key) is record:
                continue
            self._records[key] = record
            grant = (domain, record["resource"], record["epoch"], record["owner"])
            self.durable.add(grant)
            self.order.append(grant)
            self.history.granted(domain=domain, resource=grant[1], epoch=grant[2], owner=grant[3], store=store)

    def _judged(self, receiver: SimulatedReceiver, token: FencingToken, accepted: bool) -> None:
        for each in self._flushed:
            self._log_effects(each)
        if not accepted:
            return
        self.history.shown(token, at=self.world.loop.time())
        if receiver is self.register and token.epoch > self._newest.get(token.domain, 0):
            self._newest[token.domain] = token.epoch
            self.on_new_epoch(token)

    def _log_effects(self, receiver: SimulatedReceiver) -> None:
        done = self._flushed[receiver]
        self.history.effects(receiver.accepted[done:])
        self._flushed[receiver] = len(receiver.accepted)

    def _close_books(self) -> None:
        for receiver in (self.receiver, self.register):
            self._log_effects(receiver)
        for tab, op_id, partition, asked_at, task in self._enqueued:
            if op_id in self._acked and not task.cancelled() and task.exception() is None:
                device = self.browsers.index(tab.page.browser)
                self.history.acknowledged(
                    op_id,
                    partition=partition,
                    tab=tab.page.name,
                    store=f"device{device}",
                    asked_at=asked_at,
                    at=self._acked[op_id],
                )
        for world in self.worlds:
            for record in self.records(world, "dead-letters"):
                self.history.died(record["op_id"], record["reason"])
