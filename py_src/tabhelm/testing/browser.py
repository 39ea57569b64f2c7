"""A real Chromium whose tabs are really hidden, throttled, frozen and cached.

An ordinary Playwright launch keeps every page "visible", so that freezing does nothing, and switches the back/forward
cache off. This one starts Chromium itself and joins it without those defaults.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import Browser, CDPSession, Page, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from .driver import Ability, Engine
from .errors import BrowserGone, ChaosError
from .process import ChromiumProcess
from .shared_worker import SharedWorkerHandle
from .tab import ChaosTab, WaitUntil
from .targets import ProcessMap

T = TypeVar("T")


class ChaosBrowser:
    """One Chromium, ordinarily with a fresh profile. Several may run at once, each with its own port and profile."""

    engine: Engine = "chromium"
    lacks: Mapping[Ability, str] = {}
    """Nothing; see :class:`~tabhelm.testing.driver.DrivenBrowser`."""

    def __init__(
        self, process: ChromiumProcess, joined: Browser, session: CDPSession, home: Page, control: CDPSession
    ) -> None:
        self.process = process
        self.context = joined.contexts[0]
        """The Playwright context of the browser's one profile."""
        self.killed: set[int | None] = set()
        """Process ids of the renderers that were killed on purpose, with all that lived there; ``None``: not known."""
        self._joined = joined
        self._session = session
        self._home = home  # the harness' own empty tab: something to show when all others shall be hidden
        self._control = control
        self._processes = ProcessMap(session)
        self._tabs: dict[Page, ChaosTab] = {}
        self._opened = 0
        self._workers: dict[str, SharedWorkerHandle] = {}
        self._offline = False
        self.context.on("page", self._on_page)

    @classmethod
    @asynccontextmanager
    async def launch(
        cls,
        executable: str | os.PathLike[str] | None = None,
        *,
        extra_args: Sequence[str] = (),
        headless: bool = True,
        profile: Path | None = None,
        playwright: Playwright | None = None,
    ) -> AsyncIterator[ChaosBrowser]:
        """Start a Chromium and end it, with all its processes and its profile, when the block ends, however it ends.

        Costs about 0.4 s, and 0.4 s more if no running ``playwright`` driver is given. Without ``executable`` it is
        found by :func:`tabhelm.testing.find_chromium`. A given ``profile`` is a folder to use and to keep: a second
        browser, started there after the first has ended, finds what that one stored.

        Raises:
            BrowserGone: there is no Chromium, or it does not come up.
        """
        async with AsyncExitStack() as stack:
            if playwright is None:
                playwright = await stack.enter_async_context(async_playwright())
            name = None if executable is None else os.fspath(executable)
            process = await ChromiumProcess.start(name, extra_args, headless=headless, profile=profile)
            stack.callback(process.end)
            try:
                joined = await playwright.chromium.connect_over_cdp(process.ws_url, no_defaults=True)
                # Entered last, so left first: the driver forgets the tabs before their processes die.
                stack.push_async_callback(_politely, joined.close)
                context = joined.contexts[0]
                home = context.pages[0] if context.pages else await context.new_page()
                session = await joined.new_browser_cdp_session()
                control = await context.new_cdp_session(home)
            except PlaywrightError as error:
                raise BrowserGone(f"cannot join {process.obituary()}: {error.message}") from error
            yield cls(process, joined, session, home, control)

    @property
    def alive(self) -> bool:
        """Whether the browser process runs and answers."""
        return self.process.alive and self._joined.is_connected()

    @property
    def version(self) -> str:
        return f"Chromium {self._joined.version}"

    def obituary(self) -> str:
        """One line about how the browser ended, with the end of its stderr."""
        return self.process.obituary()

    # -- tabs --------------------------------------------------------------------------------------------------------

    @property
    def tabs(self) -> list[ChaosTab]:
        """The tabs that are not closed (crashed ones included), oldest first; also those that pages opened."""
        return [tab for tab in self._tabs.values() if not tab.page.is_closed()]

    async def new_tab(
        self, url: str | None = None, *, wait_until: WaitUntil = "load", timeout: float = 30.0
    ) -> ChaosTab:
        """Open a tab in front of the others, which are hidden then, and go to ``url``."""
        tab = self._tab_of(await self._guard(self.context.new_page()))
        await tab._session()
        if self._offline:
            await tab.offline(True)
        if url is not None:
            await tab.navigate(url, wait_until=wait_until, timeout=timeout)
        return tab

    async def hide_all(self) -> None:
        """Bring the harness' own empty tab to the front: every tab is hidden."""
        await self._guard(self._home.bring_to_front())
        await self._settle_visibility(shown=None)

    # -- shared workers ----------------------------------------------------------------------------------------------

    async def shared_workers(self, *, name: str | None = None, url_contains: str = "") -> list[SharedWorkerHandle]:
        """The shared workers that run now, those of this name and URL only if given."""
        answer: dict[str, Any] = await self._guard(self._session.send("Target.getTargets"))
        found: list[SharedWorkerHandle] = []
        for target in answer["targetInfos"]:
            if target["type"] != "shared_worker" or url_contains not in target["url"]:
                continue
            if name is not None and target["title"] != name:
                continue
            handle = self._workers.get(target["targetId"])
            if handle is None:
                handle = SharedWorkerHandle(self, target["targetId"], target["url"], target["title"])
                self._workers[target["targetId"]] = handle
            found.append(handle)
        return found

    async def worker_pids(self) -> set[int]:
        """Process ids of the renderers that hold shared workers."""
        return {await worker.pid() for worker in await self.shared_workers()}

    # -- the network -------------------------------------------------------------------------------------------------

    async def offline(self, offline: bool) -> None:
        """Cut all tabs, and the shared workers that run now, off the network, or join them again.

        Tabs that are opened meanwhile are cut off as well; a shared worker that starts meanwhile is when this is called
        once more. Service workers are not.
        """
        self._offline = offline
        for tab in self.tabs:
            if not tab.silent:
                await tab.offline(offline)
        for worker in await self.shared_workers():
            try:
                await worker.offline(offline)
            except ChaosError:
                if await worker.alive():
                    raise

    # -- storage -----------------------------------------------------------------------------------------------------

    async def storage_clear(self, origin: str, types: str = "all") -> None:
        """Delete what ``origin`` (``http://127.0.0.1:8765``) stored, as "clear site data" does, under its running tabs.

        ``types`` is a comma-separated list of the protocol's names, such as ``indexeddb,local_storage``.
        """
        await self._guard(self._control.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": types}))

    async def wipe(self, origin: str) -> None:
        """Delete what ``origin`` stored, under its running tabs."""
        await self.storage_clear(origin)

    async def quota(self, origin: str, bytes: int | None) -> None:
        """Limit the storage of ``origin`` to so many bytes; ``None`` lifts the limit. Beyond it, writes abort."""
        params: dict[str, Any] = {"origin": origin}
        if bytes is not None:
            params["quotaSize"] = bytes
        await self._guard(self._control.send("Storage.overrideQuotaForOrigin", params))

    # -- reports -----------------------------------------------------------------------------------------------------

    async def save_report(self, folder: Path, *, timeout: float = 5.0) -> list[Path]:
        """Write what every tab and shared worker logged, and a screenshot of each tab, into ``folder``.

        Made for a test that failed, so it never fails itself: what cannot be had is said in the text. ``timeout`` is
        for each tab. Returns the files written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        lines: list[str] = [] if self.alive else [self.obituary()]
        for tab in self.tabs if self.alive else list(self._tabs.values()):
            lines += ["", repr(tab), *(f"  {entry}" for entry in tab.log)]
            if tab.silent:
                lines.append("  (no screenshot: the page cannot answer)")
                continue
            try:
                async with asyncio.timeout(timeout):
                    await tab.page.bring_to_front()  # a hidden page draws nothing
                    file = folder / f"tab-{tab.number}.png"
                    await tab.page.screenshot(path=file)
                    written.append(file)
            except (TimeoutError, PlaywrightError) as error:
                lines.append(f"  (no screenshot: {type(error).__name__} {error})")
        try:
            for worker in await self.shared_workers():
                lines += ["", repr(worker)]
                try:
                    lines += [f"  {entry}" for entry in await worker.console()]
                except (ChaosError, PlaywrightError) as error:
                    lines.append(f"  (no console: {error})")
        except (ChaosError, PlaywrightError) as error:
            lines.append(f"(no shared workers: {error})")
        text = folder / "console.txt"
        text.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
        return [text, *written]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _on_page(self, page: Page) -> None:
        self._tab_of(page)

    def _tab_of(self, page: Page) -> ChaosTab:
        tab = self._tabs.get(page)
        if tab is None:
            self._opened += 1
            tab = self._tabs[page] = ChaosTab(self, page, self._opened)
        return tab

    async def _close_target(self, tab: ChaosTab) -> None:
        # Through the browser's own session: it answers even when the page hangs or its renderer is dead.
        try:
            await self._guard(self._session.send("Target.closeTarget", {"targetId": await tab._target_id()}))
        except PlaywrightError as error:
            if "No target" not in error.message:
                raise

    async def _find_processes(self) -> None:
        """Look up every tab's renderer while that is quick: before one of them is stopped or hung."""
        for tab in self.tabs:
            if not tab.silent:
                with contextlib.suppress(ChaosError):  # it may be closing at this moment
                    await tab.pid()

    async def _settle_visibility(self, shown: ChaosTab | None) -> None:
        for tab in self.tabs:
            if not tab.silent:
                await tab._becomes("visible" if tab is shown else "hidden")

    async def _guard(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except PlaywrightError as error:
            if not self.alive:
                raise BrowserGone(self.obituary()) from error
            raise


async def _politely(goodbye: Callable[[], Awaitable[None]], timeout: float = 10.0) -> None:
    """Say farewell to a browser that may be dead already."""
    try:
        async with asyncio.timeout(timeout):
            await goodbye()
    except (TimeoutError, PlaywrightError):
        pass
