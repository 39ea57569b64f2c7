"""Firefox: tabs driven over WebDriver BiDi by Playwright, all else over the browser's own debugger port.

Playwright opens a window for each page, so that none is ever hidden; here they are tabs of one window, opened by the
browser itself, as a user's are. Its pages share one process for each site; here each tab has its own, as far as Firefox
lets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Frame, Page, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from .driven import ProcessTab, descendants, thread_names
from .driver import Ability, Engine
from .errors import BrowserGone, ChaosError, TabGone
from .firefox_console import PREFERENCES, FirefoxConsole
from .process import process_running
from .waiting import wait_for

T = TypeVar("T")
NAMES = ("firefox-esr", "firefox")

_PREFERENCES: dict[str, str | float | bool] = {
    **PREFERENCES,
    # A process for each tab: by default Firefox lets up to four tabs of a site share.
    "dom.ipc.processCount.webIsolated": 100,
    "dom.ipc.processPrelaunch.enabled": False,
    "dom.max_script_run_time": 0,  # a hung page is to hang
    "browser.tabs.unloadOnLowMemory": False,
    "browser.sessionstore.resume_from_crash": False,
}

# Of the tab whose browser has this id: `window_`, `tab_`, `browser_` (each undefined if there is none).
_FIND = """
const [id_] = args;
let window_, tab_, browser_;
for (const each of Services.wm.getEnumerator("navigator:browser")) {
  const found = each.gBrowser?.tabs.find(({ linkedBrowser }) => linkedBrowser.browserId === id_);
  if (found) [window_, tab_, browser_] = [each, found, found.linkedBrowser];
}
"""
_LIST = """return [...Services.wm.getEnumerator("navigator:browser")].flatMap(({ gBrowser }) =>
  gBrowser.tabs.map(({ linkedBrowser: { browserId } }) => browserId));"""
_CONTAINER = f"{_FIND} return tab_.userContextId;"
_PID = f"{_FIND} return browser_?.frameLoader?.remoteTab?.osPid ?? 0;"
_ADD = f"""{_FIND}
const triggeringPrincipal = Services.scriptSecurityManager.getSystemPrincipal();
const added = window_.gBrowser.addTab("about:blank", {{ userContextId: tab_.userContextId, triggeringPrincipal }});
window_.gBrowser.selectedTab = added;
return added.linkedBrowser.browserId;"""
_SHOW = f"{_FIND} window_.gBrowser.selectedTab = tab_;"
_DUPLICATE = f"""{_FIND}
const copy = window_.gBrowser.duplicateTab(tab_);
await new Promise((resolve) => copy.addEventListener("SSTabRestored", resolve, {{ once: true }}));
return copy.linkedBrowser.browserId;"""
_CLOSE = f"{_FIND} if (tab_) window_.gBrowser.removeTab(tab_, {{ skipPermitUnload: true }});"
_BACK = f"{_FIND} browser_.goBack();"
_WIPE = """
const [origin, userContextId] = args;
const principal = Services.scriptSecurityManager.createContentPrincipal(Services.io.newURI(origin), { userContextId });
const failed = await new Promise((resolve) =>
  Services.clearData.deleteDataFromPrincipal(principal, true, Ci.nsIClearDataService.CLEAR_DOM_STORAGES, resolve));
if (failed) throw new Error(`failed with flags ${failed}`);"""


def find_firefox() -> str:
    """The Firefox to use: the environment variable ``TABHELM_FIREFOX``, else the first known name on the path.

    Raises:
        BrowserGone: there is none.
    """
    named = os.environ.get("TABHELM_FIREFOX")
    if named:
        if not shutil.which(named):
            raise BrowserGone(f"TABHELM_FIREFOX names {named}, which cannot be started")
        return named
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise BrowserGone(f"no Firefox found (looked for {', '.join(NAMES)}): install one or set TABHELM_FIREFOX")


class FirefoxBrowser:
    """One Firefox; see :class:`~tabhelm.testing.driver.DrivenBrowser`. ``reset()`` gives it a fresh profile."""

    engine: Engine = "firefox"
    lacks: Mapping[Ability, str] = {
        "freeze": "Firefox has no freeze event and freezes no pages",
        "bfcache": "Firefox caches no page that holds a Web Lock when it is left, though it lets go on pagehide",
    }

    def __init__(self, joined: Browser, console: FirefoxConsole, main_pid: int) -> None:
        self._joined = joined
        self._console = console
        self._main_pid = main_pid
        self._context: BrowserContext | None = None
        self._home: int = 0  # browser id of an empty tab of our own in the context's window
        self._container = 0
        self._tabs: list[FirefoxTab] = []
        self._opening = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def launch(
        cls,
        executable: str | os.PathLike[str] | None = None,
        *,
        headless: bool = True,
        playwright: Playwright | None = None,
    ) -> AsyncIterator[FirefoxBrowser]:
        """Start a Firefox and end it, with all its processes and its profile, when the block ends, however it ends.

        Raises:
            BrowserGone: there is no Firefox, or it does not come up.
        """
        async with AsyncExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="tabhelm-firefox-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            if playwright is None:
                playwright = await stack.enter_async_context(async_playwright())
            path = os.fspath(executable or find_firefox())
            socket = folder / "debugger"
            try:
                joined = await playwright.firefox.launch(
                    channel="moz-firefox",
                    executable_path=path,
                    headless=headless,
                    args=[f"--start-debugger-server={socket}"],
                    firefox_user_prefs=_PREFERENCES,
                )
            except PlaywrightError as error:
                raise BrowserGone(f"cannot start {path}: {error.message}") from error
            stack.push_async_callback(_close, joined)
            console = await FirefoxConsole.connect(socket)
            stack.callback(console.close)
            # Playwright asks Firefox to end when a page's process crashes.
            await console.run('Services.env.set("MOZ_CRASHREPORTER_SHUTDOWN", "");')
            self = cls(joined, console, int(await console.run("return Services.appinfo.processID;")))
            await self.reset()
            yield self

    # -- the browser -------------------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        return f"Firefox {self._joined.version}"

    @property
    def alive(self) -> bool:
        return self._joined.is_connected() and process_running(self._main_pid)

    def obituary(self) -> str:
        return f"{self.version}, process {self._main_pid}, {'runs' if self.alive else 'has ended'}"

    @property
    def tabs(self) -> Sequence[FirefoxTab]:
        return [tab for tab in self._tabs if not tab._closed]

    async def reset(self) -> None:
        """Close all tabs and go on with a fresh profile (another container), as after a start."""
        await self._console.run("Services.io.offline = false;")
        for tab in self.tabs:
            await tab.cont()
        if self._context is not None:
            await self._context.close()
        self._tabs = []
        before = set(await self._console.run(_LIST))
        self._context = await self._joined.new_context(viewport=None)
        await self._context.new_page()
        (self._home,) = set(await self._console.run(_LIST)) - before
        self._container = await self._console.run(_CONTAINER, self._home)

    async def new_tab(self, url: str | None = None, *, timeout: float = 30.0) -> FirefoxTab:
        tab = await self._adopt(_ADD, self._home)
        if url is not None:
            await tab.navigate(url, timeout=timeout)
        return tab

    async def offline(self, offline: bool) -> None:
        assert self._context is not None
        await self._context.set_offline(offline)

    async def wipe(self, origin: str) -> None:
        await self._console.run(_WIPE, origin, self._container)

    async def worker_pids(self) -> set[int]:
        return {pid for pid in descendants(self._main_pid) if "DOM Worker" in thread_names(pid)}

    async def save_report(self, folder: Path, *, timeout: float = 5.0) -> list[Path]:
        """Write what every tab logged, and a screenshot of each, into ``folder``; the text first. Never fails."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = [self.obituary()]
        written = []
        for tab in self._tabs:
            lines += ["", repr(tab), *(f"  {entry}" for entry in tab.log)]
            if tab.silent:
                lines.append("  (no screenshot: the page cannot answer)")
                continue
            file = folder / f"tab-{tab.number}.png"
            try:
                async with asyncio.timeout(timeout):
                    await tab.show()
                    await tab.page.screenshot(path=file)
                written.append(file)
            except (TimeoutError, ChaosError, PlaywrightError) as error:
                lines.append(f"  (no screenshot: {type(error).__name__} {error})")
        text = folder / "console.txt"
        text.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
        return [text, *written]

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _adopt(self, code: str, browser_id: int) -> FirefoxTab:
        """Let the browser open a tab, and take the page that Playwright makes of it."""
        assert self._context is not None
        async with self._opening:
            async with self._context.expect_page() as opening:
                added = await self._console.run(code, browser_id)
            tab = FirefoxTab(self, await opening.value, added, len(self._tabs) + 1)
            self._tabs.append(tab)
        return tab


class FirefoxTab(ProcessTab):
    """A tab of a :class:`FirefoxBrowser`; see :class:`~tabhelm.testing.driver.DrivenTab`."""

    def __init__(self, browser: FirefoxBrowser, page: Page, browser_id: int, number: int) -> None:
        super().__init__(number)
        self.browser = browser
        self.page = page
        """The Playwright page."""
        self._id = browser_id
        self._pid: int | None = None
        page.on("framenavigated", self._on_navigated)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.log.append(f"uncaught: {error}"))

    @property
    def url(self) -> str:
        return self.page.url

    @property
    def _browser_alive(self) -> bool:
        return self.browser.alive

    async def show(self) -> None:
        await self._run(_SHOW)
        for tab in self.browser.tabs:
            if not tab.silent:
                wanted = "visible" if tab is self else "hidden"
                await tab.until(f"() => document.visibilityState === '{wanted}'", 10.0, f"it to be {wanted}")

    async def navigate(self, url: str, *, timeout: float = 30.0) -> None:
        await self._mark_left()
        await self._guard(self.page.goto(self._absolute(url), timeout=timeout * 1000))

    async def reload(self, *, timeout: float = 30.0) -> None:
        await self._guard(self.page.reload(timeout=timeout * 1000))

    async def _go_back(self) -> None:
        await self._run(_BACK)

    async def duplicate(self) -> FirefoxTab:
        tab = await self.browser._adopt(_DUPLICATE, self._id)
        loaded = f"() => location.href === {self.page.url!r} && document.readyState === 'complete'"
        await tab.until(loaded, 30.0, "the copy to be loaded")
        return tab

    async def close(self, *, timeout: float = 30.0) -> None:
        if self._closed:
            return
        await self._run(_CLOSE)
        await wait_for(self.page.is_closed, timeout, f"{self._label} to close")
        self._closed = True

    async def kill_process(self, timeout: float = 30.0) -> None:
        await super().kill_process(timeout)
        await wait_for(self._without_process, timeout, f"Firefox to notice that {self._label} lost its process")

    async def pid(self) -> int:
        self._require()
        if self._pid is None or not process_running(self._pid):
            self._pid = int(await self._run(_PID)) or None
        if self._pid is None:
            raise ChaosError(f"Firefox names no process for {self._label}")
        return self._pid

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _evaluate(self, js: str, arg: Any) -> Any:
        return await self._guard(self.page.evaluate(js, arg))

    def _on_its_way(self, error: Exception) -> bool:
        return isinstance(error, PlaywrightError) and any(
            words in error.message for words in ("context was destroyed", "Cannot find context", "no such frame")
        )

    async def _note_pids(self) -> None:
        """Nothing to do: the parent process knows them, whatever the page does."""

    async def _without_process(self) -> bool:
        return not process_running(int(await self._run(_PID)) or -1)

    async def _run(self, code: str) -> Any:
        return await self.browser._console.run(code, self._id)

    async def _guard(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except PlaywrightError as error:
            if not self.browser.alive:
                raise BrowserGone(self.browser.obituary()) from error
            if self.page.is_closed():
                raise TabGone(f"{self._label} is closed") from error
            raise

    def _on_navigated(self, frame: Frame) -> None:
        if frame.parent_frame is None:
            self._pid = None

    def _on_console(self, message: ConsoleMessage) -> None:
        self.log.append(f"{message.type}: {message.text}")


async def _close(browser: Browser) -> None:
    with contextlib.suppress(TimeoutError, PlaywrightError):
        async with asyncio.timeout(10.0):
            await browser.close()
