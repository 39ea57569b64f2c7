"""``demo --play``: real headless tabs play the demo, are broken on purpose, and a verdict is given.

Act one: three tabs enqueue while offline, go online, and the leading tab crashes in mid-flush. Act two: the next leader
is the tab whose process holds the engine; it is killed in mid-flush too, with a fourth tab opened for it. Act three:
the leader is frozen, and another tab enqueues more. At the end every operation must have been applied exactly once.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Error as PlaywrightError

from tabhelm.testing import ChaosBrowser, ChaosError, ChaosTab, WaitTimeout, wait_for
from tabhelm.testing.history import History
from tabhelm_build.browsers import find_chromium
from tabhelm_build.bundle import DIST
from tabhelm_build.demo_server import DemoServer

RESOURCE = "inspections:offline-queue:mutations"
"""The play follows the queue's leader; the status report, which the demo's tabs also lead, is not part of it."""
EACH = 20
LATER = 5
LIMIT = 240.0
FAILOVERS = ("crash", "engine_crash", "freeze")

_ENQUEUE = """([name, count]) => {
  const form = document.getElementById("add");
  const before = demo.acks.length;
  for (let n = 0; n < count; n++) {
    form.elements.title.value = `${name} ${n}`;
    form.requestSubmit();
  }
  return before + count;
}"""


def main(arguments: list[str] | None = None) -> int:
    """Play; returns 0 if every promise held."""
    as_json = "--json" in (arguments or [])
    chromium = find_chromium()
    play = Play(quiet=as_json)
    with DemoServer(DIST) as server:
        asyncio.run(play.run(server, str(chromium)))
    return conclude(play, as_json=as_json)


def conclude(play: Play, *, as_json: bool) -> int:
    """Print the verdict, and return the exit code that goes with it: 0 if every promise held, else 1."""
    result = play.result()
    if as_json:
        print(json.dumps(result))
        for broken in play.broken:
            print(f"demo --play: {broken}", file=sys.stderr)
    else:
        play.tell(result)
    return 0 if result["verdict"] == "passed" else 1


@dataclass
class Play:
    """One performance and what it came to."""

    quiet: bool = False
    patience: float = 60.0
    """Seconds that an acknowledged operation may take to be applied."""
    began: float = field(default_factory=time.monotonic)
    names: dict[str, str] = field(default_factory=dict)
    """Tab id to the letter it is called by."""
    tabs: dict[str, ChaosTab] = field(default_factory=dict)
    ready_ms: list[float] = field(default_factory=list)
    failover_ms: dict[str, float] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    """Epoch to the letter of the tab that led under it."""
    acks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the tabs were told is durable, by operation id."""
    grants: list[dict[str, Any]] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)
    """Every time that a tab was told that one began to lead."""
    effects: list[dict[str, Any]] = field(default_factory=list)
    stale_rejected: int = 0
    """Requests that the receiver refused because a newer owner had been seen; not those that a later request of the
    same owner overtook."""
    broken: list[str] = field(default_factory=list)
    """What went against a promise, or kept the play from its end: one sentence each."""

    def say(self, text: str) -> None:
        """One line of the timeline."""
        print(
            f"{time.monotonic() - self.began:6.2f} s  {text}", file=sys.stderr if self.quiet else sys.stdout, flush=True
        )

    async def run(self, server: DemoServer, chromium: str) -> None:
        """All three acts. One that does not come to its end is told in the verdict, like a broken promise."""
        try:
            async with asyncio.timeout(LIMIT), ChaosBrowser.launch(chromium) as browser:
                await self._first_act(browser, server)
                await self._second_act(browser, server)
                await self._third_act(server)
        except (ChaosError, PlaywrightError, AssertionError) as error:
            self._break(f"the play ended early: {error}")
        except TimeoutError:
            self._break(f"the play ended early: it was not finished within {LIMIT:g} s")
        await self.collect(server)

    def _break(self, what: str) -> None:
        self.broken.append(what)
        self.say(what)

    async def collect(self, server: DemoServer) -> None:
        """Take the receiver's side of the story."""
        self.effects = await self._effects(server)
        counts = (await asyncio.to_thread(server.metrics))["resources"].get(RESOURCE, {})
        self.stale_rejected = counts.get("stale", 0)

    async def _first_act(self, browser: ChaosBrowser, server: DemoServer) -> None:
        self.say("Act one: three tabs, offline")
        for name in "ABC":
            await self._open(browser, server, name)
        await self._leads("A")
        for name in "ABC":
            await self.tabs[name].offline(True)
        await self._nobody_leads()
        for name in "ABC":
            await self._enqueue(name, EACH)
        await self._queued(3 * EACH)
        self.say(f"{3 * EACH} operations are durable in the queue; nobody leads")
        # B goes online first and leads; A's process holds the engine.
        await asyncio.to_thread(lambda: server.faults(delay_ms=500))
        await self.tabs["B"].offline(False)
        await self._leads("B")
        await self._announced(server)
        await self._hold_next(server)  # at once, or nothing may be left to hold
        await self._held(server)
        for name in "AC":
            await self.tabs[name].offline(False)
        await self.tabs["A"].show()
        self.say("Crashing tab B, which leads and has a batch on its way")
        at = time.time()
        await self.tabs["B"].crash()
        await self._failover("crash", at, ["A", "C"])
        await self._release(server)

    async def _second_act(self, browser: ChaosBrowser, server: DemoServer) -> None:
        leader = self.leaders[max(self.leaders)]
        if leader != "A":
            self.say(f"Act two needs tab A, whose process holds the engine, to lead; {leader} closes")
            await self.tabs.pop(leader).close()
            await self._leads("A", above=max(self.leaders))
        self.say("Act two: a fourth tab opens; tab A leads, and its process holds the engine")
        await self._open(browser, server, "D")
        await self._hold_next(server)
        await self._enqueue("D", EACH)
        await self._held(server)
        self.say("Killing tab A's process: leader, engine and a batch on its way are gone at once")
        at = time.time()
        await self.tabs["A"].kill_process()
        await self._failover("engine_crash", at, [name for name in "CD" if name in self.tabs])
        await self._release(server)
        await self.all_applied(server)

    async def _third_act(self, server: DemoServer) -> None:
        leader = self.leaders[max(self.leaders)]
        alive = [name for name in self.tabs if name not in ("B", "A")]
        if len(alive) < 2:
            raise AssertionError("act three needs two living tabs")
        other = next(name for name in alive if name != leader)
        self.say(f"Act three: tab {leader} leads and is frozen; tab {other} enqueues {LATER} more")
        at_before = time.time()
        await self.tabs[leader].freeze()
        await self._failover("freeze", at_before, [other])
        await self._enqueue(other, LATER)
        await self.all_applied(server)
        await self.tabs[leader].thaw()
        self.say("The frozen tab is awake again and leads nothing")

    # -- pieces -------------------------------------------------------------------------------------------------------

    async def _open(self, browser: ChaosBrowser, server: DemoServer, name: str) -> None:
        tab = await browser.new_tab(f"{server.url}/?test")
        await tab.until("() => window.demo !== undefined", timeout=60, what=f"tab {name} to join")
        facts = await tab.evaluate("() => ({ id: demo.tab.id, readyMs: demo.readyMs })")
        self.tabs[name], self.names[facts["id"]] = tab, name
        self.ready_ms.append(round(facts["readyMs"], 1))
        self.say(f"Tab {name} joined in {facts['readyMs']:.0f} ms")

    async def _enqueue(self, name: str, count: int) -> None:
        tab = self.tabs[name]
        total = await tab.evaluate(_ENQUEUE, [f"{name}{len(self.acks)}", count])
        await tab.until("(total) => demo.acks.length >= total", arg=total, what=f"{count} operations to be durable")
        for ack in await tab.evaluate("() => demo.acks"):
            self.acks[ack["id"]] = {**ack, "tab": name}
        self.say(f"Tab {name} enqueued {count} operations")

    async def _nobody_leads(self) -> None:
        nobody = "() => Object.keys(demo.tab.presence().leaders).length === 0"
        await self.tabs["A"].until(nobody, what="the offline tabs to step down")

    async def _queued(self, count: int) -> None:
        tab = self.tabs["A"]
        await tab.until(
            "async (count) => (await demo.queue.stats()).queued === count", arg=count, what=f"{count} queued operations"
        )

    async def _note_leaders(self) -> list[dict[str, Any]]:
        """Read what the tabs were told since; returns every beginning that any of them ever saw."""
        for tab in self.tabs.values():
            if not tab.gone and not tab.silent:
                for event in await tab.evaluate("() => demo.events.splice(0)"):
                    self._note(event)
        return self.seen

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("resource") != RESOURCE:
            return
        if event["type"] == "epoch-issued":
            self.grants.append(event)
        elif event["type"] == "leadership-changed" and event["to"] == "leading":
            self.seen.append(event)
            if event["epoch"] not in self.leaders:
                name = self.leaders[event["epoch"]] = self.names.get(event["tab"], "?")
                self.say(f"Tab {name} leads with epoch {event['epoch']}")

    async def _leads(self, name: str, above: int = 0) -> None:
        """Wait until this tab has begun to lead, with an epoch above that."""

        async def led() -> bool:
            seen = await self._note_leaders()
            return any(self.names.get(each["tab"]) == name and each["epoch"] > above for each in seen)

        await wait_for(led, 30, f"tab {name} to lead")

    async def _failover(self, what: str, at: float, names: list[str]) -> None:
        before = max(self.leaders)

        async def next_leader() -> dict[str, Any] | None:
            found = [each for each in await self._note_leaders() if each["epoch"] > before]
            return min(found, key=lambda each: float(each["at"])) if found else None

        for name in [name for name, tab in self.tabs.items() if tab.gone]:
            del self.tabs[name]
        leader = await wait_for(next_leader, 60, f"one of the tabs {', '.join(names)} to lead")
        self.failover_ms[what] = round(leader["at"] - at * 1000, 1)
        self.say(f"… after {self.failover_ms[what]:.0f} ms")

    async def _hold_next(self, server: DemoServer) -> None:
        """Let the server hold the next batch: its sender will die with it on its way."""
        await asyncio.to_thread(lambda: server.faults(hold=True, resource=RESOURCE, count=1))

    async def _held(self, server: DemoServer) -> None:
        await wait_for(lambda: asyncio.to_thread(server.held), 30, "a batch to be on its way")

    async def _announced(self, server: DemoServer) -> None:
        """Wait until the server has answered the newest leader's first request, which holds no operation."""
        epoch = max(self.leaders)

        async def answered() -> bool:
            seen = [each for each in await asyncio.to_thread(server.requests) if each["resource"] == RESOURCE]
            return any(each["epoch"] >= epoch and each["outcome"] == 200 for each in seen)

        await wait_for(answered, 30, f"epoch {epoch} to reach the server")

    async def _release(self, server: DemoServer) -> None:
        """Let the dead leader's late write go on: the server must refuse it."""
        # A leader has its epoch before it first speaks to the server. Until then a late write is no stale one.
        await self._announced(server)
        await asyncio.to_thread(lambda: server.faults(release=True))
        await asyncio.to_thread(lambda: server.faults(delay_ms=20))
        self.say("The dead leader's batch, held back until now, reaches the server")

    async def _effects(self, server: DemoServer) -> list[dict[str, Any]]:
        return [effect for effect in await asyncio.to_thread(server.effects) if effect["resource"] == RESOURCE]

    async def all_applied(self, server: DemoServer) -> None:
        """Wait until every acknowledged operation is applied; the verdict tells of those that never are."""

        async def applied() -> bool:
            return self.acks.keys() <= {effect["op_id"] for effect in await self._effects(server)}

        try:
            await wait_for(applied, self.patience, f"{len(self.acks)} operations to be applied")
        except WaitTimeout:
            missing = self.acks.keys() - {effect["op_id"] for effect in await self._effects(server)}
            self.say(f"{len(missing)} of {len(self.acks)} operations are not applied after {self.patience:g} s")
        else:
            self.say(f"{len(self.acks)} operations are applied")

    # -- the verdict --------------------------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        """The figures, as ``--json`` prints them."""
        # A killed engine takes the news of its last grant with it.
        history = History(grants_known=False)
        for identifier, ack in self.acks.items():
            history.acknowledged(identifier, partition=ack["partition"], tab=ack["tab"])
        for grant in self.grants:
            history.event(grant)
        history.effects(self.effects)
        verdict = history.check()
        self.broken += [each for each in verdict.violations if each not in self.broken]
        failed = self.broken or self.failover_ms.keys() != set(FAILOVERS)
        return {
            "tabs": len(self.ready_ms),
            "operations": len(self.acks),
            "accepted": len(self.effects),
            "duplicates": len(verdict.doubled),
            "lost": len(verdict.lost),
            "stale_accepted": len(verdict.stale) + len(verdict.leaked),
            "stale_rejected": self.stale_rejected,
            "leaders": [{"tab": self.leaders[epoch], "epoch": epoch} for epoch in sorted(self.leaders)],
            "failover_ms": {what: self.failover_ms.get(what) for what in FAILOVERS},
            "ready_ms": self.ready_ms,
            "verdict": "failed" if failed else "passed",
        }

    def tell(self, result: dict[str, Any]) -> None:
        """The verdict for people."""
        print()
        print(f"  {result['operations']} operations enqueued, {result['accepted']} applied")
        print(f"  lost {result['lost']}, doubled {result['duplicates']}, accepted from a stale leader", end=" ")
        print(f"{result['stale_accepted']}, refused from one {result['stale_rejected']}")
        led = ", ".join(f"{leader['tab']} (epoch {leader['epoch']})" for leader in result["leaders"])
        print(f"  leaders in turn: {led}")
        waits = ", ".join(f"{what.replace('_', ' ')}: {ms:.0f} ms" for what, ms in self.failover_ms.items())
        print(f"  next leader after {waits}")
        print(f"  tabs ready after {', '.join(f'{ms:.0f}' for ms in self.ready_ms)} ms")
        for broken in self.broken:
            print(f"  {broken}")
        print(f"\n  Verdict: {result['verdict']}")
