"""A real page with an interpreter of its own, as an app's developer would have it, and a way to ask its Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tabhelm.testing import ChaosBrowser, ChaosTab, wait_for

from .site import PythonSite

INSIDE = Path(__file__).with_name("inside.py").read_text()

BOOT = """async ([wheel, inside]) => {
  window.troubles = [];
  for (const type of ["error", "unhandledrejection"])
    addEventListener(type, ({ reason, message }) => troubles.push(`${type}: ${reason?.stack ?? reason ?? message}`));
  addEventListener("securitypolicyviolation", ({ blockedURI }) => troubles.push(`policy: ${blockedURI}`));
  const began = performance.now();
  const { loadPyodide } = await import("/tabhelm/pyodide/pyodide.mjs");
  const pyodide = await loadPyodide({ indexURL: new URL("/tabhelm/pyodide/", location.href).href });
  const booted = performance.now();
  await pyodide.loadPackage("micropip");
  const micropip = pyodide.pyimport("micropip");
  await micropip.install(new URL(wheel, location.href).href);
  micropip.destroy();
  const installed = performance.now();
  pyodide.FS.writeFile("/home/pyodide/inside.py", inside);
  globalThis.pyodide = pyodide;
  globalThis.inside = pyodide.pyimport("inside");
  const ready = performance.now();
  return { bootMs: booted - began, installMs: installed - booted, importMs: ready - installed };
}"""

CALL = "([name, args]) => inside.call(name, args)"


class FailedInPage(AssertionError):
    """A Python function in the page raised; the message is its traceback there."""


class PythonPage:
    """One tab whose page runs Pyodide itself. ``await page("name", *arguments)`` calls a function of ``inside.py``."""

    ask = CALL

    def __init__(self, tab: ChaosTab, ms: dict[str, float]) -> None:
        self.tab = tab
        self.ms = ms
        """Milliseconds: ``bootMs`` of Pyodide, ``installMs`` of our wheel, ``importMs`` of our modules."""

    @classmethod
    async def boot(cls, tab: ChaosTab, site: PythonSite) -> PythonPage:
        """Boot Pyodide in an open page and install our wheel with micropip."""
        return cls(tab, await tab.evaluate(BOOT, [site.wheel, INSIDE], timeout=90.0))

    @classmethod
    async def open(cls, browser: ChaosBrowser, site: PythonSite, path: str = "/blank") -> PythonPage:
        return await cls.boot(await browser.new_tab(f"{site.url}{path}"), site)

    @classmethod
    async def joined(cls, browser: ChaosBrowser, site: PythonSite, **options: Any) -> PythonPage:
        page = await cls.open(browser, site)
        await page("join", options)
        return page

    async def __call__(self, name: str, *arguments: Any, timeout: float = 60.0) -> Any:
        """Await the function in the page.

        Raises:
            FailedInPage: it raised.
        """
        answer = json.loads(await self.tab.evaluate(self.ask, [name, json.dumps(arguments)], timeout=timeout))
        if "error" in answer:
            raise FailedInPage(answer["traceback"])
        return answer["result"]

    async def leads(self, resource: str = "job", *, above: int = 0, timeout: float = 30.0) -> dict[str, Any]:
        """Wait until this page's loop runs with an epoch higher than ``above``."""

        async def look() -> dict[str, Any] | None:
            found: dict[str, Any] = await self("now", resource)
            return found if found["leads"] and found["epoch"] > above else None

        found = await wait_for(look, timeout, f"{self.tab} to lead {resource!r} with an epoch above {above}")
        assert found is not None
        return found

    async def stands_by(self, resource: str = "job", *, timeout: float = 30.0) -> None:
        """Wait until this page's request is queued behind the leader."""

        async def queued() -> bool:
            return f"leader:{resource}" in [
                ":".join(each.split(":")[2:]) for each in (await locks(self.tab))["pending"]
            ]

        await wait_for(queued, timeout, f"{self.tab} to stand by for {resource!r}")

    async def sees(self, condition: Callable[[dict[str, Any]], bool], what: str, *, timeout: float = 15.0) -> None:
        """Wait until this tab's presence is so."""

        async def look() -> bool:
            return condition(await self("presence"))

        await wait_for(look, timeout, f"{self.tab}: {what}")

    async def uncaught(self) -> list[str]:
        found: list[str] = await self.tab.evaluate("() => troubles")
        return found


async def locks(tab: ChaosTab) -> dict[str, list[str]]:
    """Names of all held and awaited locks of this origin."""
    found: dict[str, list[str]] = await tab.evaluate(
        """async () => Object.fromEntries(Object.entries(await navigator.locks.query())
          .map(([key, list]) => [key, list.map(({ name }) => name).sort()]))"""
    )
    return found


async def one_leader(pages: Sequence[PythonPage], resource: str = "job", *, above: int = 0) -> PythonPage:
    """Wait until exactly one of these pages leads, and return it."""

    async def look() -> list[PythonPage] | None:
        seen = [await page("now", resource) for page in pages]
        leading = [page for page, now in zip(pages, seen, strict=True) if now["leads"] and now["epoch"] > above]
        return leading if len(leading) == 1 else None

    found = await wait_for(look, 30.0, f"one leader of {resource!r} with an epoch above {above}")
    assert found is not None
    return found[0]


WORKER = """
import { loadPyodide } from "/tabhelm/pyodide/pyodide.mjs";
let answer;
const [wheel, text] = await new Promise((resolve) => (onmessage = ({ data }) => resolve(data)));
onmessage = ({ data }) => answer(data);
const pyodide = await loadPyodide({ indexURL: new URL("/tabhelm/pyodide/", location.href).href });
await pyodide.loadPackage("micropip");
const micropip = pyodide.pyimport("micropip");
await micropip.install(new URL(wheel, location.href).href);
pyodide.FS.writeFile("/home/pyodide/inside.py", text);
const inside = pyodide.pyimport("inside");
answer = async ({ id, name, args }) => postMessage({ id, text: await inside.call(name, args) });
postMessage({ id: 0 });
"""
_START_WORKER = """([wheel, inside]) => new Promise((ready, failed) => {
  window.troubles = [];
  const waiting = new Map([[0, ready]]);
  window.worker = new Worker("/worker.mjs", { type: "module" });
  worker.onerror = ({ message }) => failed(new Error(message));
  worker.onmessage = ({ data: { id, text } }) => (waiting.get(id)(text), waiting.delete(id));
  let last = 0;
  window.ask = (name, args) => new Promise((resolve) => {
    waiting.set(++last, resolve);
    worker.postMessage({ id: last, name, args });
  });
  worker.postMessage([wheel, inside]);  // kept until the module has run and listens
})"""


class PythonWorker(PythonPage):
    """The same in a dedicated worker of the page."""

    ask = "([name, args]) => ask(name, args)"

    @classmethod
    async def boot(cls, tab: ChaosTab, site: PythonSite) -> PythonWorker:
        site.put("/worker.mjs", WORKER)
        await tab.evaluate(_START_WORKER, [site.wheel, INSIDE], timeout=90.0)
        return cls(tab, {})
