"""Three tabs at work under a schedule of misfortunes, and what is recorded of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from e2e.kit import STALL_MS, WATCHED, Site, join, until
from playwright.async_api import ConsoleMessage

from tabhelm.testing import ChaosBrowser, ChaosError, ChaosTab
from tabhelm.testing.recording import Recording

from .adversity import SEATS, WIPE, Call, Step
from .lane import QUEUE, drained, open_queue

_SAID = "history "
"""What a page says on its console is known outside even if it is killed a moment later."""
_OPTIONS = {"sendTimeoutMs": 1_500}
_PATIENCE = 100.0
"""Seconds; longer than the minute after which Chromium ends a transaction whose engine stands still."""
_STOPPED = 2.5 * STALL_MS / 1000
"""The longest that a process stands still."""

_WATCH = """() => {
  let told = 0;
  window.say = (entry) => console.debug("history " + JSON.stringify({ told: ++told, ...entry }));
  tab.addEventListener("event", ({ detail }) => {
    if (["epoch-issued", "operation-died", "queue-lost"].includes(detail.type)) say({ event: detail });
  });
  addEventListener("offline", () => say({ offline: true }));
}"""
_LEADER = "(resource) => tab.presence().leaders[resource]?.tabId ?? null"
_WORK = """([calls, since]) => {
  // Timers of a hidden page come once a second; messages come.
  const pause = (ms) => new Promise((over) => {
    const { port1, port2 } = new MessageChannel();
    const end = performance.now() + ms;
    port1.onmessage = () => (performance.now() < end ? port2.postMessage(null) : (port1.close(), over()));
    port2.postMessage(null);
  });
  const one = async ({ call, partition, payloads, together, ids }, asked) => {
    const items = payloads.map((payload, n) => ({ payload, partition, ...(ids && { id: ids[n] }) }));
    const acknowledged = (found) => say({ call, partition, ids: found, asked, at: clock() });
    if (together) {
      const [{ payload, ...options }] = items;
      acknowledged(items.length > 1 ? await q.enqueueAll(items) : [await q.enqueue(payload, options)]);
      return;
    }
    const found = await Promise.allSettled(items.map(({ payload }) => q.enqueue(payload, { partition })));
    acknowledged(found.filter(({ status }) => status === "fulfilled").map(({ value }) => value));
  };
  window.working = (async () => {
    for (const each of calls) {
      await pause(each.pause_ms);
      // A call that may have been made before, by a page that is no more: nobody knows when, but in this step.
      const asked = since !== null && each === calls[0] && each.ids ? since : clock();
      for (;;) {
        try {
          await one(each, asked);
          break;
        } catch (error) {
          if (!error.code) throw error;
          say({ call: each.call, refused: `${error.code ?? error.name}: ${error.message}` });
          if (!each.ids) break; // whether it was stored is unknown, and without an id it cannot be asked again
          await pause(20);
        }
      }
    }
  })();
}"""


class Seat:
    """One of three places at which a tab works; the tab may be another one after each misfortune."""

    def __init__(self, name: str, crew: Crew) -> None:
        self.name = name
        self.tab: ChaosTab
        self.tab_id = ""
        self.calls: tuple[Call, ...] = ()
        self.next = 0
        """The first call that is not answered yet."""
        self._crew = crew
        self._opened = 0
        self._told = 0

    @property
    def done(self) -> bool:
        return self.next == len(self.calls)

    async def open(self) -> None:
        """A fresh tab that goes on where the last one was."""
        self.tab = await self._crew.site.open(self._crew.browser)
        await self.join()

    async def join(self) -> None:
        """A new document, in a fresh tab or in the same one, goes on where the last one was."""
        self._opened += 1
        self._told = 0
        name = f"{self.name}.{self._opened}"
        self.tab.page.on("console", lambda message: self._heard(name, message))
        facts = await join(self.tab, **WATCHED)
        self.tab_id = facts["id"]
        await self.tab.evaluate(_WATCH)
        await open_queue(self.tab, **_OPTIONS)
        if not self.done:
            await self.work(repeated=True)

    async def work(self, *, repeated: bool = False) -> None:
        """Begin the calls that are not answered; ``repeated``: another page may have made the first of them."""
        since = self._crew.step_began * 1000 if repeated else None
        await self.tab.evaluate(_WORK, [[call.as_dict() for call in self.calls[self.next :]], since])

    def _heard(self, name: str, message: ConsoleMessage) -> None:
        if not message.text.startswith(_SAID) or name != f"{self.name}.{self._opened}":
            return
        said = json.loads(message.text.removeprefix(_SAID))
        if said["told"] <= self._told:
            return  # a page that comes out of the cache repeats its whole console
        self._told = said["told"]
        if "event" in said:
            self._crew.recording.event(said["event"])
            return
        if "offline" in said:
            self._crew.offline += 1
            return
        if "refused" in said:
            self._crew.refused.append(f"{name}, call {said['call']}: {said['refused']}")
        for op_id in said.get("ids", ()):
            self._crew.recording.acknowledged(
                op_id, partition=said["partition"], tab=name, asked_at=said["asked"] / 1000, at=said["at"] / 1000
            )
        if "ids" in said or self.calls[self.next].ids is None:
            self.next = next(n for n, call in enumerate(self.calls, 1) if call.number == said["call"])


class Crew:
    """The three seats, the site and the recording."""

    def __init__(self, browser: ChaosBrowser, site: Site, tell: Callable[[str], None]) -> None:
        self.browser = browser
        self.site = site
        self.recording = Recording()
        self.refused: list[str] = []
        """Calls that were answered with an error, as text."""
        self.requests: list[dict[str, Any]] = []
        """What came to the receiver, in order; complete once the run is over."""
        self.offline = 0
        """How often a page found itself without a network."""
        self.at = "before the first step"
        """Where the run is, as text."""
        self.step_began = 0.0
        """When the tabs were given the calls of this step (Unix seconds)."""
        self.seats = {name: Seat(name, self) for name in SEATS}
        self._tell = tell
        self._faults: dict[str, Callable[[Seat], AbstractAsyncContextManager[None]]] = {
            "kill": self._kill,
            "kill the leader": self._kill,
            "kill the engine": self._kill,
            "crash": self._crash,
            "close": self._close,
            "reload": self._reload,
            "freeze": self._freeze,
            "freeze the leader": self._freeze,
            "stop": self._stop,
            "hang": self._hang,
            "offline": self._offline,
            "offline all": self._offline_all,
            "cache": self._cache,
            WIPE: self._wipe,
        }

    async def run(self, steps: list[Step]) -> None:
        """Everything: the steps, then rest."""
        began = time.monotonic()
        for seat in self.seats.values():
            await seat.open()
        for number, step in enumerate(steps, 1):
            if step.fault == WIPE:
                await self._rest()  # so that only what is enqueued from now on may be gone
            self.at = f"in step {number} of {len(steps)}: {step}"
            self._tell(f"{time.monotonic() - began:5.1f} s  {self.at}")
            await self._step(step)
        self.at = "after the last step"
        await self._rest()
        self._tell(f"{time.monotonic() - began:5.1f} s  at rest")
        self.recording.effects(await self.site.effects())
        self.requests += await self.site.requests()

    async def _rest(self) -> None:
        tab = self.seats[SEATS[0]].tab
        await drained(tab, timeout=_PATIENCE)
        # Whoever heard of a death may be gone or frozen, and a wipe takes the letter, too.
        for letter in await tab.evaluate("() => q.deadLetters()"):
            dead = {"type": "operation-died", "queue": QUEUE, "operation": letter["id"], "reason": letter["reason"]}
            self.recording.event(dead)
        self.recording.rested(at=time.time())

    async def _step(self, step: Step) -> None:
        for seat in self.seats.values():
            seat.calls, seat.next = step.calls[seat.name], 0
        accepted = len(await self.site.effects())
        await self.site.faults(**step.order)
        arrived = len(await self.site.requests())  # from here on each request meets this step's trouble
        self.step_began = time.time()
        await asyncio.gather(*(seat.work() for seat in self.seats.values()))
        begun = step.after * sum(len(calls) for calls in step.calls.values())
        await self._until(lambda: sum(seat.next for seat in self.seats.values()) >= begun, "the tabs to be at work")
        if step.restarts:
            self.requests += await self.site.requests()
            await asyncio.to_thread(self.site.server.kill)
            await asyncio.to_thread(self.site.server.start)
        victim = await self._victim(step)
        async with self._faults[step.fault](victim):
            others = [seat for seat in self.seats.values() if seat is not victim]
            # A process that stands still in the midst of a transaction locks all others out of the database.
            over = time.monotonic() + (_STOPPED if step.fault == "stop" else math.inf)
            await self._until(
                lambda: all(seat.done for seat in others) or time.monotonic() > over, "the other tabs to be done"
            )
        if not step.restarts and step.fault != WIPE:

            async def befell() -> bool:
                return len(await self.site.requests()) > arrived

            await until(befell, f"a request that the receiver's trouble ({step.trouble}) befalls", _PATIENCE)
        await self.site.faults(release=True)
        await self._until(lambda: all(seat.done for seat in self.seats.values()), "every tab to be done")

        async def got_through() -> bool:
            return len(await self.site.effects()) > accepted

        await until(got_through, "operations to get through", _PATIENCE)

    async def _victim(self, step: Step) -> Seat:
        """The seat that the fault is for; the one drawn, where it cannot be told who leads or holds the engine."""
        if step.fault.endswith("leader"):
            for asked in self.seats.values():
                leads = await asked.tab.evaluate(_LEADER, f"offline-queue:{QUEUE}")
                for seat in self.seats.values():
                    if seat.tab_id == leads:
                        return seat
        if step.fault.endswith("engine"):
            holders: set[int] = set()
            with contextlib.suppress(ChaosError):  # it is dying of what was before
                holders = await self.browser.worker_pids()
            for seat in self.seats.values():
                if await seat.tab.pid() in holders:
                    return seat
        return self.seats[step.victim]

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, and put a fresh tab where one is gone."""

        async def asked() -> bool:
            for seat in self.seats.values():
                if seat.tab.gone:
                    await seat.open()
            return condition()

        calls = {name: f"{seat.next} of {len(seat.calls)}" for name, seat in self.seats.items()}
        await until(asked, f"{what} (calls answered at first: {calls})", _PATIENCE)

    async def _network(self, there: bool) -> None:
        """Cut everything off the network, or join it again. A worker whose process is gone is listed a while longer."""

        async def done() -> bool:
            try:
                await self.browser.offline(not there)
            except ChaosError:
                return False
            return True

        await until(done, "the whole browser to change its network")

    # -- misfortunes: what begins, and how it ends --------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _kill(self, seat: Seat) -> AsyncIterator[None]:
        await seat.tab.kill_process()
        yield

    @contextlib.asynccontextmanager
    async def _crash(self, seat: Seat) -> AsyncIterator[None]:
        await seat.tab.crash()
        yield

    @contextlib.asynccontextmanager
    async def _close(self, seat: Seat) -> AsyncIterator[None]:
        await seat.tab.close()
        yield

    @contextlib.asynccontextmanager
    async def _reload(self, seat: Seat) -> AsyncIterator[None]:
        await seat.tab.reload()
        await seat.join()
        yield

    @contextlib.asynccontextmanager
    async def _freeze(self, seat: Seat) -> AsyncIterator[None]:
        await seat.tab.freeze()
        yield
        await seat.tab.thaw()

    @contextlib.asynccontextmanager
    async def _stop(self, seat: Seat) -> AsyncIterator[None]:
        await seat.tab.stop()
        yield
        await seat.tab.cont()

    @contextlib.asynccontextmanager
    async def _hang(self, seat: Seat) -> AsyncIterator[None]:
        await seat.tab.hang(STALL_MS / 1000 * 1.5)
        yield

    @contextlib.asynccontextmanager
    async def _offline(self, seat: Seat) -> AsyncIterator[None]:
        await seat.tab.offline(True)
        yield
        await seat.tab.offline(False)

    @contextlib.asynccontextmanager
    async def _offline_all(self, seat: Seat) -> AsyncIterator[None]:
        await self._network(False)
        yield
        await self._network(True)

    @contextlib.asynccontextmanager
    async def _cache(self, seat: Seat) -> AsyncIterator[None]:
        await seat.tab.navigate("/blank2")
        yield
        if not await seat.tab.back():
            await seat.join()

    @contextlib.asynccontextmanager
    async def _wipe(self, seat: Seat) -> AsyncIterator[None]:
        # All storage at once would take the locks away, too: Chromium gives pages that come later another lock manager.
        await self.browser.storage_clear(self.site.url, "indexeddb")
        self.recording.wiped(at=time.time())
        yield
