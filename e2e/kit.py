"""What the tests of the whole thing share: a running site, joined tabs, leaders, protected writes.

A page keeps what it does where tests find it: ``window.tab`` (the joined tab), ``window.events`` (what it was told),
``window.stands[key]`` (its elections: ``{election, runs: [{epoch, at, abortedAt, …}]}``), ``window.uncaught``.
Times in pages are Unix milliseconds of the machine's one clock, so that those of different tabs can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tabhelm.testing import wait_for
from tabhelm.testing.driver import DrivenTab
from tabhelm_build.demo_server import DemoServer

T = TypeVar("T")
TabT = TypeVar("TabT", bound=DrivenTab)
TabT_co = TypeVar("TabT_co", bound=DrivenTab, covariant=True)
RECEIVER = "/api/operations"
DEFAULT_RESOURCE = "job"
STEADY_MS = 10_000
"""What joins here say unless told otherwise: nobody is to be taken for stalled, however busy the machine is."""
STALL_MS = 4_000
WATCHED = {"stallAfterMs": STALL_MS}
"""What tabs join with where one of them hangs, and others are to find it out."""
PATIENCE_MS = 6_000
"""Milliseconds until a shared engine that says nothing is given up. A new one needs them on a busy machine."""

_LISTEN = """() => {
  if (window.uncaught) return;
  window.uncaught = [];
  window.events = [];
  window.hosts = [];
  window.stands = {};
  window.writes = {};
  window.clock = () => performance.timeOrigin + performance.now();
  for (const type of ["error", "unhandledrejection"])
    addEventListener(type, ({ reason, message }) => uncaught.push(`${type}: ${reason?.stack ?? reason ?? message}`));
  window.shown = [];
  addEventListener("pageshow", ({ persisted }) => shown.push(persisted));
}"""

_JOIN = """async ([base, options]) => {
  const began = performance.now();
  window.tabhelm = await import(`${base}/tabhelm.mjs`);
  window.tab = await tabhelm.join({ testHooks: true, ...options });
  const ms = performance.now() - began;
  tab.addEventListener("event", ({ detail }) => events.push(detail));
  tab.addEventListener("host", ({ detail }) => hosts.push({ at: clock(), ...detail }));
  return { id: tab.id, connectionId: tab.connectionId, generation: tab.generation, engine: tab.engine, ms };
}"""

_STAND = """([resource, policy]) => {
  const key = policy.scope === undefined ? resource : `${resource}:${policy.scope}`;
  const stand = (stands[key] = { runs: [], statuses: [] });
  stand.election = tab.lead(resource, (ctx) => new Promise((resolve) => {
    const run = { ctx, epoch: ctx.epoch, at: clock(), abortedAt: null, reason: null, ticks: 0 };
    run.kept = ctx.headers(); // of its next write: what a leader has in its hand that has not heard of its end
    stand.runs.push(run);
    // Time stands still while the page is frozen or hung: the first tick after it shows what the loop saw then.
    const timer = setInterval(() => (run.ticks += 1), 100);
    ctx.signal.addEventListener("abort", () => {
      clearInterval(timer);
      run.abortedAt = clock();
      run.reason = ctx.signal.reason.reason;
      resolve();
    });
  }), policy);
  stand.election.addEventListener("status", ({ detail }) => stand.statuses.push({ at: clock(), ...detail }));
}"""

_NOW = """(key) => {
  const stand = window.stands?.[key];
  if (!stand) return null;
  const run = stand.runs.findLast(({ abortedAt }) => abortedAt === null);
  const { status } = stand.election;
  return {
    status,
    // Both: what the client says, and a loop of that very epoch that really runs.
    leads: status.state === "leading" && run?.epoch === status.epoch,
    epoch: run?.epoch ?? null, at: run?.at ?? null, tab: tab.id, engine: tab.engine?.id ?? null,
    runs: stand.runs.map(({ ctx, ...rest }) => rest),
  };
}"""

_WRITE = """([key, name, url, late]) => {
  const run = stands[key].runs.at(-1);
  const body = JSON.stringify({ operations: [{ op_id: name, partition: "p", payload: { kind: "note", name } }] });
  const given = late ? run.kept : run.ctx.headers();
  if (!late) run.kept = run.ctx.headers();
  const headers = { ...given, "Content-Type": "application/json" };
  const write = (writes[name] = { status: null, error: null });
  write.done = fetch(url, { method: "POST", headers, body }).then(
    (response) => ((write.status = response.status), write.status),
    (error) => ((write.error = String(error)), null),
  );
  return headers["Fencing-Token"];
}"""


_served: set[str] = set()


class Served(Protocol):
    """Something that is served at an address."""

    url: str


ServedT = TypeVar("ServedT", bound=Served)


def at_a_new_address(serve: Callable[[], AbstractContextManager[ServedT]]) -> Iterator[ServedT]:
    """Served where no test of this process was before: WebKitGTK keeps what an origin has stored."""
    while True:
        with serve() as served:
            if served.url not in _served:
                _served.add(served.url)
                yield served
                return


class Opens(Protocol[TabT_co]):
    """A browser of whichever engine."""

    async def new_tab(self, url: str | None = None) -> TabT_co: ...


@dataclass(frozen=True)
class Leader(Generic[TabT]):
    """A tab that leads, seen in its own page. ``at``: Unix milliseconds when its loop began."""

    tab: TabT
    epoch: int
    at: float
    tab_id: str
    engine: str


class Site:
    """The demo server, asked without blocking the loop on which the browser is driven."""

    def __init__(self, server: DemoServer) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url

    async def effects(self) -> list[dict[str, Any]]:
        """The accepted effects in order."""
        return await asyncio.to_thread(self.server.effects)

    async def applied(self, count: int, *, timeout: float = 60.0) -> None:
        """Wait until so many effects are applied."""

        async def so_many() -> bool:
            return len(await self.effects()) == count

        await until(so_many, f"{count} effects", timeout)

    async def requests(self) -> list[dict[str, Any]]:
        """Every POST to the receiver in order of arrival."""
        return await asyncio.to_thread(self.server.requests)

    async def faults(self, **wanted: Any) -> None:
        """Replace the faults in force; none: end them."""
        await asyncio.to_thread(lambda: self.server.faults(**wanted))

    async def hold_one(self) -> None:
        """Hold the next request until ``release()``."""
        await self.faults(hold=True, count=1)

    async def held(self, count: int = 1) -> None:
        """Wait until so many requests are held."""
        await wait_for(lambda: self._is_held(count), 15, f"{count} held requests")

    async def _is_held(self, count: int) -> bool:
        return await asyncio.to_thread(self.server.held) == count

    async def release(self) -> None:
        """Let the held requests go on."""
        await self.faults(release=True)

    async def open(self, browser: Opens[TabT], page: str = "/blank") -> TabT:
        """Open a page that has not joined yet."""
        tab = await browser.new_tab(f"{self.url}{page}")
        await tab.evaluate(_LISTEN)
        return tab

    async def joined(self, browser: Opens[TabT], *, base: str = "/tabhelm", **options: Any) -> TabT:
        """Open a page and join; see :func:`join`."""
        tab = await self.open(browser)
        await join(tab, base=base, **options)
        return tab

    async def standing(
        self,
        browser: Opens[TabT],
        count: int = 1,
        *,
        resource: str = DEFAULT_RESOURCE,
        join: dict[str, Any] | None = None,
        **policy: Any,
    ) -> list[TabT]:
        """So many joined tabs that stand for ``resource``; the barrier of each goes to the receiver."""
        tabs = [await self.joined(browser, **(join or {})) for _ in range(count)]
        for tab in tabs:
            await self.stand(tab, resource, **policy)
        return tabs

    async def stand(self, tab: DrivenTab, resource: str = DEFAULT_RESOURCE, **policy: Any) -> None:
        """Let a joined tab stand for ``resource``; its barrier is the receiver, unless ``fence`` says otherwise."""
        await stand(tab, resource, **policy)


async def join(tab: DrivenTab, *, base: str = "/tabhelm", **options: Any) -> dict[str, Any]:
    """Join in an open page; returns ``{id, connectionId, generation, engine, ms}``."""
    await tab.evaluate(_LISTEN)
    given = {"app": "e2e", "stallAfterMs": STEADY_MS, "enginePatienceMs": PATIENCE_MS, **options}
    facts: dict[str, Any] = await tab.evaluate(_JOIN, [base, given], timeout=90.0)
    return facts


async def stand(tab: DrivenTab, resource: str = DEFAULT_RESOURCE, **policy: Any) -> None:
    """Let a joined tab stand for ``resource``; its barrier is the receiver, unless ``fence`` says otherwise."""
    given = {key: value for key, value in {"fence": RECEIVER, **policy}.items() if value is not None}
    await tab.evaluate(_STAND, [resource, given])


async def now(tab: DrivenTab, key: str = DEFAULT_RESOURCE) -> dict[str, Any] | None:
    """What a tab is at in its election for ``key``, asked of the page; ``None`` if it does not stand."""
    found: dict[str, Any] | None = await tab.evaluate(_NOW, key)
    return found


async def leaders(tabs: Iterable[TabT], key: str = DEFAULT_RESOURCE) -> list[Leader[TabT]]:
    """The tabs whose loop for ``key`` runs at this moment. Tabs that cannot answer are passed over."""
    found = []
    for tab in tabs:
        if tab.silent:
            continue
        at = await now(tab, key)
        if at is not None and at["leads"]:
            found.append(Leader(tab, at["epoch"], at["at"], at["tab"], at["engine"]))
    return found


async def leader(
    tabs: Sequence[TabT], key: str = DEFAULT_RESOURCE, *, above: int = 0, timeout: float = 30.0
) -> Leader[TabT]:
    """Wait until exactly one of ``tabs`` leads ``key`` with an epoch higher than ``above``, and return it."""

    async def only() -> Leader[TabT] | None:
        found = await leaders(tabs, key)
        return found[0] if len(found) == 1 and found[0].epoch > above else None

    return await until(only, f"one leader of {key!r} with an epoch above {above}", timeout)


async def stands_by(tab: DrivenTab, key: str = DEFAULT_RESOURCE) -> None:
    """Wait until the tab asks for leadership behind whoever has it."""

    async def standby() -> bool:
        at = await now(tab, key)
        return at is not None and at["status"].get("standby") is True

    await until(standby, f"{tab} to stand by for {key!r}", 30)


async def hand_over(old: Leader[TabT], others: Sequence[TabT], key: str = DEFAULT_RESOURCE) -> None:
    """Let the leader step down for one of ``others``: not before one stands by, or it might be its own successor."""

    async def one() -> bool:
        seen = [await now(tab, key) for tab in others]
        return any(at is not None and at["status"].get("standby") is True for at in seen)

    await until(one, f"one of {others} to stand by for {key!r}", 30)
    await old.tab.evaluate("(key) => stands[key].election.stepDown('your turn')", key)


async def fire(tab: DrivenTab, name: str, key: str = DEFAULT_RESOURCE) -> None:
    """Send one protected write from the newest loop of ``tab`` without waiting for its answer."""
    await tab.evaluate(_WRITE, [key, name, RECEIVER, False])


async def write(tab: DrivenTab, name: str, key: str = DEFAULT_RESOURCE) -> int | None:
    """Send one protected write and return the receiver's status; ``None`` if the request failed."""
    await fire(tab, name, key)
    return await _status(tab, name)


async def late(tab: DrivenTab, name: str, key: str = DEFAULT_RESOURCE) -> int | None:
    """Send what the newest loop of ``tab`` had ready when it still led, and return the receiver's status.

    Its token is newer than all that this loop has written: it is refused for its epoch, or not at all.
    """
    await tab.evaluate(_WRITE, [key, name, RECEIVER, True])
    return await _status(tab, name)


async def _status(tab: DrivenTab, name: str) -> int | None:
    status: int | None = await tab.evaluate("(name) => writes[name].done", name)
    return status


async def uncaught(tab: DrivenTab) -> list[str]:
    """Errors and rejections that nobody handled in this page."""
    found: list[str] = await tab.evaluate("() => uncaught")
    return found


async def until(condition: Callable[[], Awaitable[T | None]], what: str, timeout: float = 15.0) -> T:
    """``wait_for`` with a word for what is awaited, always: it is what a failed test says."""
    return await wait_for(condition, timeout, what)
