"""One real browser tab, and the faults that can befall it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urljoin

from playwright.async_api import CDPSession, ConsoleMessage, Page
from playwright.async_api import Error as PlaywrightError

from .errors import BrowserGone, ChaosError, ScriptError, TabGone, TabUnresponsive, WaitTimeout
from .process import memory_pss, process_running, process_state
from .waiting import threw, wait_for

if TYPE_CHECKING:
    from .browser import ChaosBrowser

T = TypeVar("T")
WaitUntil = Literal["commit", "domcontentloaded", "load", "networkidle"]

# Counts the lifecycle events of this document: the command that freezes answers "done" even where it did nothing.
_WATCH_LIFECYCLE = """() => {
  const key = Symbol.for("tabhelm.testing.lifecycle");
  if (!globalThis[key]) {
    const seen = globalThis[key] = { freeze: 0, resume: 0 };
    for (const type of ["freeze", "resume"]) document.addEventListener(type, () => { seen[type] += 1; }, true);
  }
  return globalThis[key];
}"""

# A message, not a timer: timers of a hidden page come once a second.
_HANG = """(ms) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); const end = performance.now() + ms; while (performance.now() < end) {} };
  port2.postMessage(null);
}"""


class ChaosTab:
    """A tab of a :class:`ChaosBrowser`. Times are seconds, sizes bytes; made by ``browser.new_tab()``.

    Whatever asks the page itself raises :class:`TabGone` once the tab is closed or its renderer died, and
    :class:`BrowserGone` once the whole browser did.
    """

    def __init__(self, browser: ChaosBrowser, page: Page, number: int) -> None:
        self.browser = browser
        self.page = page
        """The Playwright page, for everything that is not chaos."""
        self.number = number
        """1 for the first tab of the browser, and so on; names the tab in errors and reports."""
        self.log: deque[str] = deque(maxlen=2000)
        """Console messages and uncaught errors, oldest first; the newest 2000."""
        self.doomed = False
        """Whether its renderer's death is part of the test. ``crash`` and ``kill_process`` say so by themselves."""
        self._target = ""
        self._closed = asyncio.Event()
        self._crashed = asyncio.Event()
        self._stopped_pid: int | None = None
        self._busy_until = 0.0
        self._pid: int | None = None
        self._navigations: list[str] = []
        self._not_restored: list[str] = []
        page.on("close", lambda _: self._closed.set())
        page.on("crash", lambda _: self._crashed.set())
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.log.append(f"uncaught: {error}"))
        self._attaching = asyncio.ensure_future(self._attach())
        # A tab that closes at once never gets its session; whoever asks for it is told, nobody else cares.
        self._attaching.add_done_callback(lambda task: task.cancelled() or task.exception())

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "crashed" if self._crashed.is_set() else "open"
        return f"<ChaosTab {self.number} {state} {self.url}>"

    # -- asking ------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.page.url

    @property
    def gone(self) -> bool:
        """Whether the tab is closed or its renderer died."""
        return self._closed.is_set() or self._crashed.is_set() or not self.browser.alive

    @property
    def crashed_by_itself(self) -> bool:
        """Whether its renderer died though, as far as the harness can tell, nobody asked for it."""
        killed = self.browser.killed
        shared = bool(killed) and (self._pid is None or None in killed or self._pid in killed)
        return self._crashed.is_set() and not self.doomed and not shared

    @property
    def silent(self) -> bool:
        """Whether, as far as the harness did it, the page cannot answer now: gone, stopped or hung."""
        return self.gone or self._stopped_pid is not None or time.monotonic() < self._busy_until

    async def evaluate(self, js: str, arg: Any = None, *, timeout: float = 30.0) -> Any:
        """Run an expression or a function (``"(arg) => …"``) in the page, under any CSP, and return its awaited result.

        Raises:
            TabUnresponsive: no result within ``timeout`` seconds.
            playwright.async_api.Error: the code threw, or the page navigated away meanwhile.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._guard(self.page.evaluate(js, arg))
        except TimeoutError as error:
            if isinstance(error, TabUnresponsive):
                raise
            raise TabUnresponsive(f"{self._label} did not answer within {timeout:g} s: {js[:200]}") from None

    async def until(self, js: str, timeout: float = 30.0, what: str | None = None, *, arg: Any = None) -> Any:
        """Evaluate ``js`` again and again until its answer is true, and return that answer.

        The polling is done from outside, where neither throttled timers nor a CSP matter. A navigation in between does
        no harm.

        Raises:
            WaitTimeout: it stayed false for ``timeout`` seconds, or the page did not answer.
            ScriptError: ``js`` threw; names it and the page's error.
        """
        what = f"{what or js[:200]} in {self._label}"
        deadline = time.monotonic() + timeout

        async def ask() -> Any:
            try:
                return await self.evaluate(js, arg, timeout=max(deadline - time.monotonic(), 0.5))
            except PlaywrightError as error:
                if "context was destroyed" in error.message or "Cannot find context" in error.message:
                    return None  # the page is on its way to another document
                raise ScriptError(threw(what, js, error.message)) from error

        try:
            return await wait_for(ask, timeout, what)
        except TabUnresponsive:
            raise WaitTimeout(f"waited {timeout:g} s for {what}; the tab did not answer") from None

    # -- ordinary life -----------------------------------------------------------------------------------------------

    async def show(self) -> None:
        """Bring the tab to the front and wait until it is visible and every other tab that can answer is hidden."""
        await self._guard(self.page.bring_to_front())
        await self.browser._settle_visibility(shown=self)

    async def hide(self) -> None:
        """Bring an empty tab of the harness to the front, so that this tab and all others are hidden."""
        await self.browser.hide_all()

    async def navigate(self, url: str, *, wait_until: WaitUntil = "load", timeout: float = 30.0) -> None:
        """Go to ``url`` (relative to the present one) and wait until it is loaded."""
        await self._guard(self.page.goto(urljoin(self.url, url), wait_until=wait_until, timeout=timeout * 1000))

    async def reload(self, *, wait_until: WaitUntil = "load", timeout: float = 30.0) -> None:
        await self._guard(self.page.reload(wait_until=wait_until, timeout=timeout * 1000))

    async def back(self, *, timeout: float = 30.0) -> bool:
        """Go one step back in the tab's history; tells whether the page was restored from the back/forward cache."""
        session = await self._session()
        history = await self._guard(session.send("Page.getNavigationHistory"))
        index = history["currentIndex"]
        if index == 0:
            raise ChaosError(f"{self._label} has no page to go back to")
        before = len(self._navigations)
        self._not_restored.clear()
        entry = history["entries"][index - 1]
        await self._guard(session.send("Page.navigateToHistoryEntry", {"entryId": entry["id"]}))
        await wait_for(lambda: len(self._navigations) > before, timeout, f"{self._label} going back to {entry['url']}")
        restored = self.was_restored()
        await self.until("() => document.readyState === 'complete'", timeout)
        return restored

    def was_restored(self) -> bool:
        """Whether the document shown now came out of the back/forward cache (its ``pageshow`` was ``persisted``)."""
        return bool(self._navigations) and self._navigations[-1] == "BackForwardCacheRestore"

    async def bfcache_round_trip(self, via: str, *, away: float = 0.0) -> bool:
        """Go to ``via`` (same origin), stay ``away`` seconds, come back; tells whether the page was restored."""
        await self.navigate(via)
        await asyncio.sleep(away)
        return await self.back()

    async def not_restored_reasons(self) -> list[str]:
        """Why the last ``back()`` did not restore the page, as ``type:reason``; empty if it did."""
        if self.was_restored():
            return []
        await wait_for(lambda: self._not_restored, 5.0, f"the browser's reasons for not restoring {self._label}")
        return list(self._not_restored)

    async def duplicate(self, *, share_process: bool = False) -> ChaosTab:
        """Open what "Duplicate tab" opens: the same URL with a copy of this tab's sessionStorage.

        By default the copy gets a renderer process of its own, as a user's tabs mostly have, and its sessionStorage is
        filled before the first script of the page runs. With ``share_process`` the browser itself copies it
        (``window.open``), and the two tabs share one renderer: a crash or a stop then hits both.
        """
        if share_process:
            async with self.page.context.expect_page() as opening:
                await self.evaluate("() => { window.open(location.href); }")
            page = await opening.value
            await self._guard(page.wait_for_load_state("load"))
            tab = self.browser._tab_of(page)
            await tab._session()
            return tab
        origin, entries = await self.evaluate("() => [location.origin, JSON.stringify({ ...sessionStorage })]")
        tab = await self.browser.new_tab()
        session = await tab._session()
        fill = (
            f"if (self === top && location.origin === {json.dumps(origin)}) "
            f"for (const [key, value] of Object.entries({entries})) sessionStorage.setItem(key, value);"
        )
        script = await tab._guard(session.send("Page.addScriptToEvaluateOnNewDocument", {"source": fill}))
        await tab.navigate(self.url)
        await tab._guard(session.send("Page.removeScriptToEvaluateOnNewDocument", script))
        return tab

    async def close(self, *, abrupt: bool = False, timeout: float = 30.0) -> None:
        """Close the tab; returns once the browser says that it is closed.

        An ordinary close runs the page's ``pagehide`` handlers, unless it hangs or is stopped. ``abrupt`` kills its
        renderer first, so that nothing of the page runs any more. Closing a closed tab does nothing.
        """
        if self._closed.is_set():
            return
        if abrupt and not self._crashed.is_set():
            await self.kill_process()
        await self.browser._close_target(self)
        await wait_for(self._closed.is_set, timeout, f"{self._label} to close")

    # -- chaos -------------------------------------------------------------------------------------------------------

    async def freeze(self, timeout: float = 30.0) -> None:
        """Freeze the page as the browser does with a long hidden tab: ``freeze`` is fired, then its timers stand still.

        Only a hidden page can be frozen, so a visible one is hidden first. Returns once the page's ``freeze`` handlers
        have run.

        Raises:
            WaitTimeout: the page did not freeze.
        """
        if await self.evaluate("() => document.visibilityState") != "hidden":
            await self.hide()
        before = (await self.evaluate(_WATCH_LIFECYCLE))["freeze"]
        await self._set_lifecycle("frozen")
        await self._lifecycle_event("freeze", before, timeout)

    async def thaw(self, timeout: float = 30.0) -> None:
        """End a ``freeze()``; returns once the page's ``resume`` handlers have run. The page stays hidden."""
        seen = await self.evaluate(_WATCH_LIFECYCLE)
        await self._set_lifecycle("active")
        if seen["freeze"] > seen["resume"]:
            await self._lifecycle_event("resume", seen["resume"], timeout)

    async def stop(self) -> None:
        """Stop the tab's renderer process (SIGSTOP): the truest stall, without any event in the page.

        Hits whatever else lives in that process: tabs opened by ``window.open``, a shared worker that this tab created.
        Linux and macOS.
        """
        pid = await self.pid()
        await self.browser._find_processes()
        os.kill(pid, signal.SIGSTOP)
        self._stopped_pid = pid
        if os.path.isdir("/proc/self"):
            await wait_for(lambda: process_state(pid) == "T", 10.0, f"process {pid} to stop")

    async def cont(self) -> None:
        """Let a stopped renderer go on (SIGCONT). Does nothing if it is not stopped."""
        pid, self._stopped_pid = self._stopped_pid, None
        if pid is not None:
            os.kill(pid, signal.SIGCONT)

    async def hang(self, seconds: float) -> None:
        """Keep the page's main thread busy for so long; returns at once, when the loop is about to start."""
        await self.browser._find_processes()
        await self.evaluate(_HANG, seconds * 1000)
        self._busy_until = time.monotonic() + seconds

    async def offline(self, offline: bool) -> None:
        """Cut this tab off the network, or join it again: its requests fail, and ``navigator.onLine`` flips.

        Requests fail in this tab alone: shared workers have their own switch (``SharedWorkerHandle.offline``). The
        browser keeps ``navigator.onLine`` once for each renderer, so it flips in a shared worker that lives there, too.
        """
        session = await self._session()
        await self._guard(session.send("Network.enable"))
        conditions = {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await self._guard(session.send("Network.emulateNetworkConditions", conditions))

    async def crash(self, timeout: float = 30.0) -> None:
        """Crash the renderer from inside, as a bug in it would; returns once the browser has noticed."""
        session = await self._session()
        self.doomed = True
        self.browser.killed.add(self._pid)
        command = asyncio.ensure_future(session.send("Page.crash"))  # never answered: its answerer is dead
        command.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await wait_for(self._crashed.is_set, timeout, f"{self._label} to crash")
        finally:
            command.cancel()

    async def kill_process(self, timeout: float = 30.0) -> None:
        """Kill the tab's renderer process (SIGKILL), as the kernel does out of memory; waits until the browser notices.

        Works on a hung and on a stopped tab too, and hits whatever else lives in that process.
        """
        pid = await self.pid()
        self.doomed = True
        self.browser.killed.add(pid)
        os.kill(pid, signal.SIGKILL)
        self._stopped_pid = None
        await wait_for(self._crashed.is_set, timeout, f"{self._label} to lose its renderer {pid}")

    # -- its process -------------------------------------------------------------------------------------------------

    async def pid(self) -> int:
        """Process id of the tab's renderer. Takes about 50 ms, later calls nothing until the tab navigates."""
        if self._stopped_pid is not None:
            return self._stopped_pid
        if self._pid is None or not process_running(self._pid):
            self._pid = await self._guard(self.browser._processes.of_page(await self._session()))
        return self._pid

    async def memory_pss(self) -> int:
        """Proportional set size of the tab's renderer process in bytes. Linux only."""
        return memory_pss(await self.pid())

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _label(self) -> str:
        return f"tab {self.number} ({self.url})"

    async def _attach(self) -> CDPSession:
        session = await self.page.context.new_cdp_session(self.page)
        session.on("Page.frameNavigated", self._on_navigated)
        session.on("Page.navigatedWithinDocument", lambda _: self._navigations.append("SameDocument"))
        session.on("Page.backForwardCacheNotUsed", self._on_not_restored)
        await session.send("Page.enable")
        self._target = (await session.send("Target.getTargetInfo"))["targetInfo"]["targetId"]
        return session

    async def _target_id(self) -> str:
        await asyncio.shield(self._attaching)
        return self._target

    async def _session(self) -> CDPSession:
        return await self._guard(asyncio.shield(self._attaching))

    async def _guard(self, work: Awaitable[T]) -> T:
        """Await ``work``; if it fails because tab or browser are gone, say so in the harness' own words."""
        try:
            return await work
        except PlaywrightError as error:
            if not self.browser.alive:
                raise BrowserGone(self.browser.obituary()) from error
            if self._crashed.is_set() or "crashed" in error.message:
                words = self.browser.process.last_words()
                raise TabGone(f"{self._label} is dead: its renderer crashed or was killed; {words}") from error
            if self._closed.is_set() or "has been closed" in error.message:
                raise TabGone(f"{self._label} is closed") from error
            raise

    async def _set_lifecycle(self, state: str) -> None:
        session = await self._session()
        await self._guard(session.send("Page.setWebLifecycleState", {"state": state}))

    async def _lifecycle_event(self, event: str, before: int, timeout: float) -> None:
        watch = f"() => ({_WATCH_LIFECYCLE})().{event} > {before}"
        await self.until(watch, timeout, f"the {event} event")

    async def _becomes(self, visibility: str, timeout: float = 10.0) -> None:
        """Wait until the page says so; a page that cannot say anything is passed over."""
        asked = f"() => document.visibilityState === '{visibility}'"
        with contextlib.suppress(TabGone, TabUnresponsive):
            await wait_for(lambda: self.evaluate(asked, timeout=5.0), timeout, f"{self._label} to become {visibility}")

    def _on_navigated(self, event: dict[str, Any]) -> None:
        if "parentId" not in event["frame"]:
            self._pid = None  # another site or a restored page lives in another process
            self._navigations.append(event["type"])

    def _on_not_restored(self, event: dict[str, Any]) -> None:
        self._not_restored.extend(f"{why['type']}:{why['reason']}" for why in event["notRestoredExplanations"])

    def _on_console(self, message: ConsoleMessage) -> None:
        self.log.append(f"{message.type}: {message.text}")
