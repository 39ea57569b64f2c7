"""Random trouble for the real core, and what must hold whatever happens.

One run: some tabs stand for a job and for a queue's flusher, all of them enqueue; a seeded script freezes, hangs,
crashes, closes, caches and restores them, loses messages and answers, jumps clocks. Then everything is calm for a
while, and the history must show that no acknowledged operation was lost or doubled, that nobody wrote with a stale
epoch, that never two pages believed to lead, and that there is a leader again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tabhelm.simulated import (
    Faults,
    PageContext,
    PageElection,
    PageQueue,
    Settings,
    SimulatedBrowser,
    SimulatedPage,
    SimulatedReceiver,
    World,
)
from tabhelm.simulated.engine import EngineFactory
from tabhelm.simulated.locks import SimulatedLocks
from tabhelm.simulated.receiver import Guard

URL = "https://receiver.example/"
CALM = 90.0
"""Virtual seconds without trouble at the end: more than stall, cool-down and backoff together."""
NEWS = 0.5
"""Virtual seconds that the news of a theft may need from engine to page."""


@dataclass
class Tab:
    page: SimulatedPage
    election: PageElection
    queue: PageQueue


@dataclass
class Outcome:
    """What a run showed."""

    problems: list[str] = field(default_factory=list)
    acknowledged: int = 0
    accepted: int = 0
    epochs: int = 0
    refused: int = 0
    takeovers: int = 0
    """Leaders that were robbed of their lock."""
    hosts: set[str] = field(default_factory=set)
    """The kinds of hosts whose pages led."""
    steps: int = 0
    digest: int = 0
    trace: list[str] = field(default_factory=list)


class Chaos:
    def __init__(
        self,
        seed: int,
        factory: EngineFactory,
        *,
        tabs: int = 4,
        actions: int = 25,
        wipes: bool = False,
        guard: Guard | None = None,
        hosts: tuple[str, ...] = ("shared", "shared", "window"),
    ) -> None:
        self.world = World(seed)
        self.rng = self.world.stream("chaos")
        self._draw_weather()
        self.browser = SimulatedBrowser(self.world, factory, boot=(0.2, self.rng.choice([0.5, 1.0, 4.0])))
        self.receiver = SimulatedReceiver(self.world, URL, guard=guard)
        self._stall_after = self.rng.choice([2.0, 10.0])
        self.tabs: list[Tab] = []
        self.outcome = Outcome()
        self._count = tabs
        self._actions = actions
        self._wipes = wipes
        self._hosts = hosts
        # As soon as allowed only where few words get lost: a leader that lives is silent for two beats now and then.
        self._takeover = self.rng.choice([10_000, 60_000]) if self.world.faults.channel_loss < 0.1 else 60_000
        self._opened = 0
        self._enqueued: list[tuple[str, asyncio.Task[str]]] = []
        self._believers: tuple[str, ...] = ()
        self._trouble = [
            (5, self._freeze), (5, self._thaw), (3, self._hang), (2, self._crash), (3, self._close), (3, self._away),
            (4, self._back), (2, self._offline), (2, self._hide), (2, self._jump), (2, self._step_down),
            (1, self._suspend), (1, self._reload), (1, self._duplicate), (1, self._full), (1, self._silent_storage),
            (1, self._kill_engine),
        ]  # fmt: skip
        if wipes:
            self._trouble.append((3, self.world.storage.wipe))

    def run(self) -> Outcome:
        """Run and judge; problems are in the outcome, for every seed reproducibly."""
        self.world.loop.after_step = self._watch
        try:
            self.world.run(self._play(), limit=3600)
        finally:
            self.outcome.steps, self.outcome.digest = self.world.loop.steps, self.world.loop.digest
            self.outcome.trace = self.world.trace
            self.outcome.takeovers = sum(" robbed of app:v1:leader:" in line for line in self.world.trace)
            self.world.close(check=False)
        self.outcome.problems += [f"unhandled: {error}" for error in self.world.loop.errors]
        return self.outcome

    async def _play(self) -> None:
        for _ in range(self._count):
            self._open()
        await self.world.sleep(3.0)
        for _ in range(self._actions):
            self._enqueue()
            weights = [weight for weight, _ in self._trouble]
            (action,) = self.rng.choices([action for _, action in self._trouble], weights)
            action()
            while sum(tab.page.alive for tab in self.tabs) < 2:
                self._open()
            await self.world.sleep(self.rng.choice([0.0, 0.001, 0.01, 0.3, 2.0, 12.0]))
        await self._calm()
        self._judge()

    def _draw_weather(self) -> None:
        draw = self.rng.choice
        self.world.faults = Faults(
            lock_delay=(0.0, draw([0.003, 0.05])),
            channel_delay=(0.0, draw([0.005, 0.5])),
            channel_loss=draw([0.0, 0.05, 0.5]),
            database_delay=(0.0, draw([0.002, 0.05])),
            commit_delay=(0.0, draw([0.004, 0.2])),
            http_delay=(0.001, draw([0.05, 5.0])),
            http_lose_request=draw([0.0, 0.1]),
            http_lose_answer=draw([0.0, 0.1]),
            port_delay=(0.0, draw([0.003, 0.1])),
        )

    async def _calm(self) -> None:
        faults = self.world.faults
        faults.channel_loss = faults.http_lose_answer = faults.http_lose_request = 0.0
        faults.quota, faults.storage_hangs = None, False
        for tab in self.tabs:
            tab.page.thaw()
            tab.page.back()
            tab.page.show(True)
        self.browser.offline(False)
        # A page that hangs in a transaction keeps everybody from the store, until the browser ends that.
        await self.world.until(lambda: not any(tab.page.agent.state == "stopped" for tab in self.tabs), within=100.0)
        await self.world.sleep(CALM)

    def _judge(self) -> None:
        outcome, accepted = self.outcome, self.receiver.accepted
        ids = [effect.op_id for effect in accepted]
        acknowledged = [
            op_id for op_id, task in self._enqueued if task.done() and not task.cancelled() and not task.exception()
        ]
        outcome.acknowledged, outcome.accepted = len(acknowledged), len(ids)
        outcome.refused = len(self.receiver.refused)
        outcome.epochs = max((effect.token.epoch for effect in accepted), default=0)
        if len(set(ids)) != len(ids):
            outcome.problems.append("an operation took effect twice")
        stored = {record["op_id"]: record for record in self.world.storage.dump("tabhelm:app").get("operations", [])}
        dead = {record["op_id"] for record in self.world.storage.dump("tabhelm:app").get("dead-letters", [])}
        missing = [] if self._wipes else sorted(set(acknowledged) - set(ids) - dead)
        if missing:
            outcome.problems.append(
                f"{len(missing)} acknowledged operations never took effect: {stored.get(missing[0])}"
            )
        highest: dict[tuple[str, str], int] = {}
        for token in self.receiver.tokens:
            key = (token.domain, token.resource)
            if token.epoch < highest.get(key, 0):
                outcome.problems.append(f"a write was accepted from the stale epoch {token.epoch}: {token}")
            highest[key] = max(token.epoch, highest.get(key, 0))
        leading = [tab.page.name for tab in self.tabs if tab.page.alive and tab.election.acting]
        if len(leading) != 1:
            states = [(tab.page.name, tab.page.agent.state, tab.election.status) for tab in self.tabs if tab.page.alive]
            outcome.problems.append(f"{len(leading)} leaders after {CALM} s of calm: {states}")
        outcome.problems += [f"a loop failed: {error!r}" for tab in self.tabs for error in tab.election.failures]

    def _watch(self) -> None:
        """After every step: never two pages that believe to lead.

        Not counted are parked pages, which cannot write, and pages whose engine died or was robbed a moment ago and
        that have not heard of it yet: their writes are what the fence is for.
        """
        believers = tuple(tab.page.name for tab in self.tabs if tab.election.acting and _can_write(tab.page))
        if believers != self._believers:
            self._believers = believers
            self.world.note("watch", f"believers {believers}")
            self.outcome.hosts |= {self.browser.pages[name].settings.host for name in believers}
            if len(believers) > 1:
                self.outcome.problems.append(f"{self.world.loop.time():.6f}: two believers {believers}")

    # ---- trouble ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._opened += 1
        build = self.rng.choice(["build", "build", "other"])
        settings = Settings(build=build, stall_after=self._stall_after, host=self.rng.choice(self._hosts))
        self._enter(self.browser.open(f"tab{self._opened}", settings))

    def _enter(self, page: SimulatedPage) -> None:
        page.begin_join()

        async def loop(context: PageContext) -> None:
            while True:
                context.next_token()
                await context.sleep(1.0)

        policy: dict[str, Any] = {"takeoverAfterMs": self._takeover}
        if self.rng.random() < 0.3:
            policy["visible"] = "prefer"
        self.tabs.append(Tab(page, page.lead("job", loop, policy), page.queue("mutations", endpoint=URL + "api")))

    def _enqueue(self) -> None:
        for tab in self.tabs:
            if tab.page.agent.state == "running" and not tab.page.session.left:
                op_id = f"op{len(self._enqueued)}"
                task = tab.queue.enqueue({"n": op_id}, partition=self.rng.choice("ab"), op_id=op_id)
                self._enqueued.append((op_id, task))

    def _some(self, state: str) -> Tab | None:
        fitting = [tab for tab in self.tabs if tab.page.agent.state == state and not tab.page.cached]
        # Trouble for the leader is the most instructive.
        leading = [tab for tab in fitting if tab.election.acting]
        if leading and self.rng.random() < 0.5:
            return leading[0]
        return self.rng.choice(fitting) if fitting else None

    def _freeze(self) -> None:
        if tab := self._some("running"):
            tab.page.freeze()

    def _thaw(self) -> None:
        if tab := self._some("frozen"):
            tab.page.thaw()

    def _hang(self) -> None:
        if tab := self._some("running"):
            tab.page.hang(self.rng.choice([0.5, 5.0, 9.5, 12.0, 30.0, 80.0]))

    def _suspend(self) -> None:
        if tab := self._some("running"):
            tab.page.suspend()
            delay = self.rng.choice([self.rng.uniform(0.0, 30.0), 80.0])
            self.world.loop.call_later(delay, tab.page.unsuspend, context=self.world.loop.root.context())

    def _crash(self) -> None:
        if tab := self._some("running"):
            tab.page.crash()

    def _close(self) -> None:
        if tab := self._some(self.rng.choice(["running", "frozen"])):
            tab.page.close()

    def _away(self) -> None:
        if tab := self._some("running"):
            tab.page.navigate_away()

    def _back(self) -> None:
        cached = [tab for tab in self.tabs if tab.page.cached]
        if cached:
            self.rng.choice(cached).page.back()

    def _offline(self) -> None:
        self.browser.offline(self.rng.random() < 0.5)

    def _hide(self) -> None:
        if tab := self._some("running"):
            tab.page.show(self.rng.random() < 0.5)

    def _jump(self) -> None:
        for agent in self.world.agents.values():
            agent.clock.wall_offset += self.rng.choice([-86_400.0, -5.0, 0.0, 86_400.0])

    def _reload(self) -> None:
        if tab := self._some("running"):
            self._opened += 1
            self._enter(tab.page.reload(f"tab{self._opened}"))

    def _duplicate(self) -> None:
        if tab := self._some("running"):
            self._opened += 1
            self._enter(tab.page.duplicate(f"tab{self._opened}"))

    def _full(self) -> None:
        self.world.faults.quota = self.rng.choice([None, self.world.storage.size + 200])

    def _silent_storage(self) -> None:
        self.world.faults.storage_hangs = self.rng.random() < 0.5

    def _kill_engine(self) -> None:
        engines = self.browser.living_engines()
        if engines:
            self.rng.choice(engines).engine.agent.die()

    def _step_down(self) -> None:
        if tab := self._some("running"):
            tab.election.step_down("asked")


def _can_write(page: SimulatedPage) -> bool:
    engine = page.engine
    if page.agent.state != "running" or engine is None or not engine.agent.alive:
        return False
    locks = engine.ports.locks
    assert isinstance(locks, SimulatedLocks)
    return locks.robbed_at + NEWS < page.agent.loop.time()
