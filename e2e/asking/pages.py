"""Tabs that stand, serve and ask: pages of the bundle, on either host, and pages that run their own Python."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from e2e.kit import Site, until
from e2e.python_pages.kit import PythonPage

from tabhelm.testing import ChaosBrowser
from tabhelm.testing.driver import DrivenBrowser, DrivenTab

STALL_MS = 15_000
"""Nobody hangs in these tests, but several interpreters boot at once: a leader that is only slow shall stay it."""
_STAND = """({ idempotent = [], ...policy }) => {
  const it = (window.asking = { served: [], states: [], finish: [] });
  const note = ({ method, tabId, idempotencyKey, version }) => it.served.push([method, tabId, idempotencyKey, version]);
  it.election = tab.lead("job", async (ctx) => {
    it.ctx = ctx;
    await ctx.serve({
      echo: (args, call) => (note(call), { by: tab.id, args }),
      wait: (args, call) => {
        note(call);
        return new Promise((done) => it.finish.push(() => done(tab.id)));
      },
      fail: () => { throw new RangeError("out of it"); },
      refuse: (args, call) => call.refuse(`not for ${call.version} ${call.capabilities}`),
      lossy: () => ({ items: [1, { at: new Map() }] }),
      none: () => {},
    }, { idempotent });
    await ctx.sleep(1e9);
  }, policy);
  it.election.addEventListener("state", ({ detail }) => it.states.push(detail));
}"""
_ASK = """async ([method, args, options]) => {
  const began = performance.now();
  const ms = () => performance.now() - began;
  try {
    return { value: await asking.election.ask(method, args, options), ms: ms() };
  } catch (error) {
    const { name, code, message, outcome, handler } = error;
    const told = { outcome: outcome ?? null, handler: handler ?? null };
    return { error: code, name, message, ...told, ours: error instanceof tabhelm.TabhelmError, ms: ms() };
  }
}"""
_BEGIN = f"(given) => {{ asking.answer = ({_ASK})(given); }}"
INSIDE = """
import asyncio
import inside
import tabhelm
from inside import TABS, clock

SERVED, STATES, ELECTIONS = [], [], {}
GATE = asyncio.Event()


async def stand_and_serve(options):
    async def loop(ctx):
        async def echo(args, call):
            SERVED.append([call.method, call.tab_id, call.idempotency_key, call.version])
            return {"by": TABS["tab"].tab_id, "args": args}

        async def wait(args, call):
            SERVED.append([call.method, call.tab_id, call.idempotency_key, call.version])
            await GATE.wait()
            return TABS["tab"].tab_id

        async def fail(args, call):
            raise RangeError("out of it")

        async def refuse(args, call):
            call.refuse(f"not for {call.version} {','.join(sorted(call.capabilities))}")

        async def lossy(args, call):
            return {"items": [1, {"at": {1, 2}}]}

        async def none(args, call):
            pass

        handlers = {"echo": echo, "wait": wait, "fail": fail, "refuse": refuse, "lossy": lossy, "none": none}
        ctx.serve(handlers, idempotent=options.get("idempotent", ()))
        ELECTIONS["context"] = ctx
        while True:
            await ctx.sleep(1)

    policy = {key: value for key, value in options.items() if key != "idempotent"}
    election = TABS["tab"].lead("job", loop, policy=tabhelm.LeadershipPolicy.from_wire(policy))
    ELECTIONS["job"] = election
    election.on_state(lambda state: STATES.append(view(state)))


class RangeError(Exception):
    pass


def view(state):
    return state and {"value": state.value, "tabId": state.tab_id, "epoch": state.epoch, "number": state.number,
                      "current": state.current, "missed": state.missed}


async def ask(method, args, options):
    began = clock()
    try:
        timeout = options.get("timeoutMs", 10_000) / 1000
        value = await ELECTIONS["job"].ask(method, args, timeout=timeout, idempotency_key=options.get("idempotencyKey"))
        return {"value": value, "ms": clock() - began}
    except tabhelm.TabhelmError as error:
        handler = {"name": error.name, "message": error.detail} if hasattr(error, "detail") else None
        return {"error": error.code, "name": type(error).__name__, "message": str(error), "handler": handler,
                "outcome": getattr(error, "outcome", None), "ours": True, "ms": clock() - began}


async def begin(method, args, options):
    ELECTIONS["answer"] = asyncio.ensure_future(ask(method, args, options))


async def answer():
    return await ELECTIONS["answer"]


async def leading():
    return isinstance(ELECTIONS["job"].status, tabhelm.Leading)


async def said_to_lead():
    leader = ELECTIONS["job"].leader()
    return leader and leader.tab_id


async def served():
    return SERVED


async def finish():
    GATE.set()


async def publish(value):
    ELECTIONS["context"].publish(value)


async def state():
    return view(ELECTIONS["job"].state)


async def states():
    return STATES


for each in (stand_and_serve, ask, begin, answer, leading, said_to_lead, served, finish, publish, state, states):
    setattr(inside, each.__name__, each)
"""


class Member(Protocol):
    """One tab that stands for the job, whatever runs its Python."""

    tab: DrivenTab
    tab_id: str

    def ask(self, method: str, args: Any = None, **options: Any) -> Awaitable[dict[str, Any]]:
        """Ask, and wait: ``{value, ms}`` or ``{error, name, message, outcome, handler, ours, ms}``."""

    async def begin(self, method: str, args: Any = None, **options: Any) -> None:
        """Ask without waiting."""

    async def answer(self) -> dict[str, Any]:
        """What came of it."""

    async def leads(self) -> bool: ...

    async def said_to_lead(self) -> str | None:
        """Which tab it is told leads."""

    async def served(self) -> list[list[str]]:
        """``[method, tab, key, version]`` of every handler that began here."""

    async def finish(self) -> None:
        """Let ``wait`` return."""

    async def publish(self, value: Any) -> None: ...

    async def state(self) -> dict[str, Any] | None: ...

    async def states(self) -> list[dict[str, Any]]: ...


class Page:
    """A page of the bundle."""

    def __init__(self, tab: DrivenTab, tab_id: str) -> None:
        self.tab = tab
        self.tab_id = tab_id

    async def ask(self, method: str, args: Any = None, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = await self.tab.evaluate(_ASK, [method, args, options], timeout=90.0)
        return found

    async def begin(self, method: str, args: Any = None, **options: Any) -> None:
        await self.tab.evaluate(_BEGIN, [method, args, options])

    async def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.tab.evaluate("() => asking.answer", timeout=90.0)
        return found

    async def leads(self) -> bool:
        return bool(await self.tab.evaluate("() => asking.election.status.state === 'leading'"))

    async def said_to_lead(self) -> str | None:
        found: str | None = await self.tab.evaluate("() => asking.election.leader()?.tabId ?? null")
        return found

    async def served(self) -> list[list[str]]:
        found: list[list[str]] = await self.tab.evaluate("() => asking.served")
        return found

    async def finish(self) -> None:
        await self.tab.evaluate("() => asking.finish.forEach((finish) => finish())")

    async def publish(self, value: Any) -> None:
        await self.tab.evaluate("(value) => asking.ctx.publish(value)", value)

    async def state(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = await self.tab.evaluate("() => asking.election.state")
        return found

    async def states(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.tab.evaluate("() => asking.states")
        return found


class Snake:
    """A page that runs its own Python."""

    def __init__(self, page: PythonPage, tab_id: str) -> None:
        self.page = page
        self.tab = page.tab
        self.tab_id = tab_id

    async def ask(self, method: str, args: Any = None, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = await self.page("ask", method, args, options, timeout=90.0)
        return found

    async def begin(self, method: str, args: Any = None, **options: Any) -> None:
        await self.page("begin", method, args, options)

    async def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.page("answer", timeout=90.0)
        return found

    async def leads(self) -> bool:
        return bool(await self.page("leading"))

    async def said_to_lead(self) -> str | None:
        found: str | None = await self.page("said_to_lead")
        return found

    async def served(self) -> list[list[str]]:
        found: list[list[str]] = await self.page("served")
        return found

    async def finish(self) -> None:
        await self.page("finish")

    async def publish(self, value: Any) -> None:
        await self.page("publish", value)

    async def state(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = await self.page("state")
        return found

    async def states(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.page("states")
        return found


async def page(browser: DrivenBrowser, site: Site, host: str = "shared", **policy: Any) -> Page:
    """A joined page that stands; ``idempotent``: methods that its handlers may repeat."""
    tab = await site.joined(browser, host=host, stallAfterMs=STALL_MS, version="1.0", capabilities=["y", "x"])
    await tab.evaluate(_STAND, policy)
    return Page(tab, await tab.evaluate("() => tab.id"))


async def snake(browser: ChaosBrowser, site: Site, bundle: Path, **policy: Any) -> Snake:
    """A page of Python that stands."""
    place: Any = SimpleNamespace(url=site.url, wheel=f"/tabhelm/{next(bundle.glob('tabhelm-*.whl')).name}")
    made = await PythonPage.joined(browser, place, stall_after=STALL_MS / 1000, version="2.0", capabilities=["x", "y"])
    write = (
        "(text) => { pyodide.FS.writeFile('/home/pyodide/asking_inside.py', text); pyodide.pyimport('asking_inside'); }"
    )
    await made.tab.evaluate(write, INSIDE)
    await made("stand_and_serve", policy)
    return Snake(made, (await made("who"))["id"])


async def member(browser: DrivenBrowser, site: Site, bundle: Path, kind: str, **policy: Any) -> Member:
    """One of ``shared``, ``window`` (pages of the bundle) and ``python``."""
    if kind == "python":
        assert isinstance(browser, ChaosBrowser), "pages of Python are driven in Chromium alone"
        return await snake(browser, site, bundle, **policy)
    return await page(browser, site, kind, **policy)


async def team(browser: DrivenBrowser, site: Site, bundle: Path, *kinds: str, **policy: Any) -> list[Member]:
    """Members of these kinds; the first leads, and all others know it."""
    members: list[Member] = []
    for kind in kinds:
        members.append(await member(browser, site, bundle, kind, **policy))
        if len(members) == 1:
            await until(members[0].leads, "the first to lead")
    await known(members, members[0])
    return members


async def known(members: list[Member], leader: Member) -> None:
    """Wait until all are told that this one leads."""

    async def look() -> bool:
        return all([await each.said_to_lead() == leader.tab_id for each in members])

    await until(look, "the leader to be known to all", 30.0)


async def leader_of(members: list[Member], timeout: float = 30.0) -> Member:
    """Wait until exactly one leads."""

    async def look() -> list[Member] | None:
        leading = [each for each in members if await each.leads()]
        return leading if len(leading) == 1 else None

    return (await until(look, "one leader", timeout))[0]


async def begun(leader: Member, count: int = 1) -> None:
    """Wait until so many handlers have begun there."""

    async def look() -> bool:
        return len(await leader.served()) >= count

    await until(look, f"{count} handlers to have begun")
