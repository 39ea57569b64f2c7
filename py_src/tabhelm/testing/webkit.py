"""WebKitGTK: the tabs of its MiniBrowser, driven over classic WebDriver by Selenium, on a virtual screen.

WebDriver opens and closes the pages. It answers one command at a time, so that one hung page would silence all, and
ends its session when any of its pages crashes: so everything else goes through the browser's inspector, which goes on.
After a crash no page can be opened any more; :meth:`WebKitBrowser.reset` says so, and a new browser is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.webkitgtk.options import Options
from selenium.webdriver.webkitgtk.service import Service
from selenium.webdriver.webkitgtk.webdriver import WebDriver
from urllib3.exceptions import HTTPError

from .driven import ProcessTab, descendants, main_thread_seconds, thread_names
from .driver import Ability, Engine
from .errors import BrowserGone, ChaosError, ScriptError, TabGone
from .process import UNDERTAKER, process_running
from .relay import Relay
from .webkit_inspector import Inspector, PageInspector

T = TypeVar("T")
_MINI_BROWSERS = (
    *(f"/usr/lib/*/webkit2gtk-{version}/MiniBrowser" for version in ("4.1", "4.0", "6.0")),
    "/usr/libexec/webkit*/MiniBrowser",
    "/usr/lib/webkit*/MiniBrowser",
)

_CALL = """(async () => {{
  const code = ({js}
  );
  return typeof code === "function" ? await code({arg}) : await code;
}})().then(
  (value) => JSON.stringify({{ value }}),
  (error) => JSON.stringify({{ error: error?.stack ? `${{error}}\\n${{error.stack}}` : String(error) }}),
)"""
_BURN = "(ms) => { const end = performance.now() + ms; while (performance.now() < end) {} }"
_WIPE = """async () => {
  localStorage.clear();
  sessionStorage.clear();
  for (const { name } of await indexedDB.databases()) {
    await new Promise((resolve, reject) => {
      const request = indexedDB.deleteDatabase(name);
      request.onsuccess = resolve;
      request.onerror = () => reject(request.error);
    });
  }
}"""


def find_webkit() -> tuple[str, str]:
    """Paths of WebKitWebDriver (the environment variable ``TABHELM_WEBKIT``, else on the path) and of MiniBrowser.

    Raises:
        BrowserGone: one of them, or Xvfb where there is no screen, is missing.
    """
    named = os.environ.get("TABHELM_WEBKIT")
    if named and not shutil.which(named):
        raise BrowserGone(f"TABHELM_WEBKIT names {named}, which cannot be started")
    driver = named or shutil.which("WebKitWebDriver")
    way = "install one (Debian: apt-get install webkit2gtk-driver xvfb)"
    if not driver:
        raise BrowserGone(f"no WebKitGTK found (looked for WebKitWebDriver): {way} or set TABHELM_WEBKIT to its driver")
    minis = [path for pattern in _MINI_BROWSERS for path in sorted(Path("/").glob(pattern[1:]))]
    if not minis:
        raise BrowserGone(
            f"no WebKitGTK found: {driver} is there, but no MiniBrowser ({', '.join(_MINI_BROWSERS)}): {way}"
        )
    if not shutil.which("Xvfb"):
        raise BrowserGone(f"WebKitGTK needs a screen, and no Xvfb was found: {way}")
    return driver, str(minis[0])


class WebKitBrowser:
    """One MiniBrowser with a fresh profile; see :class:`~tabhelm.testing.driver.DrivenBrowser`."""

    engine: Engine = "webkit"
    lacks: Mapping[Ability, str] = {
        "freeze": "WebKit has no freeze event and freezes no pages",
        "navigator.onLine": "WebKitGTK asks the system whether there is a network, and a driver cannot change that",
    }

    def __init__(self, driver: WebDriver, service_pid: int, inspector: Inspector, relay: Relay, log: Path) -> None:
        self._driver = driver
        self._service_pid = service_pid
        self._inspector = inspector
        self._relay = relay
        self._log = log
        self._home = driver.current_window_handle
        self._tabs: list[WebKitTab] = []
        self._turn = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def launch(cls) -> AsyncIterator[WebKitBrowser]:
        """Start a MiniBrowser and end it, with all its processes and its profile, when the block ends, however it ends.

        Raises:
            BrowserGone: there is none, or it does not come up.
        """
        driver_path, mini = find_webkit()
        async with AsyncExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="tabhelm-webkit-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            display = stack.enter_context(_screen())
            relay = await stack.enter_async_context(Relay.start())
            options = Options()
            options.binary_location = mini
            for argument in (
                "--automation",
                "--enable-developer-extras=true",  # else there is nothing to inspect
                "--enable-write-console-messages-to-stdout=true",  # those of workers, which have no inspector
                f"--proxy=http://127.0.0.1:{relay.port}",
                "--ignore-host=none.invalid",  # by default the loopback interface is asked without the proxy
            ):
                options.add_argument(argument)
            log = folder / "webkit.log"
            service = Service(
                driver_path,
                log_output=str(log),
                env={
                    **os.environ,
                    "DISPLAY": display,
                    "GDK_BACKEND": "x11",
                    "HOME": str(folder),
                    "XDG_DATA_HOME": str(folder / "data"),
                    "XDG_CACHE_HOME": str(folder / "cache"),
                    "WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS": "1",  # it cannot be had as root, nor in most containers
                },
                popen_kw={"start_new_session": True},
            )
            stack.callback(_end, service)
            try:
                driver = await asyncio.to_thread(_start, options, service)
            except WebDriverException as error:
                raise BrowserGone(f"cannot start {mini}: {error.msg}; {_last_words(log)}") from error
            pid = service.process.pid
            undertaker = subprocess.Popen(
                ["/bin/sh", "-c", UNDERTAKER, "undertaker", str(pid), str(folder)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            stack.callback(_dismiss, undertaker)
            inspector = await Inspector.connect(_inspector_port(pid))
            stack.push_async_callback(inspector.close)
            await inspector.adopt()  # the page that is there from the start
            yield cls(driver, pid, inspector, relay, log)

    # -- the browser -------------------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        return f"WebKitGTK {self._driver.capabilities['browserVersion']}"

    @property
    def alive(self) -> bool:
        return process_running(self._service_pid)

    def obituary(self) -> str:
        state = "runs" if self.alive else "has ended"
        return f"{self.version}, process {self._service_pid}, {state}; {_last_words(self._log)}"

    @property
    def tabs(self) -> Sequence[WebKitTab]:
        return [tab for tab in self._tabs if not tab._closed]

    async def reset(self) -> None:
        """Close all tabs. What they stored stays, so that the next test needs an origin of its own.

        Raises:
            BrowserGone: one of its pages crashed, and so it opens none any more.
        """
        self._relay.open = True
        if any(tab._died for tab in self._tabs):
            raise BrowserGone("WebKitGTK's driver ended its session when a page crashed")
        for tab in self.tabs:
            await tab.cont()
            await tab.close()
        self._tabs = []

    async def new_tab(self, url: str | None = None, *, timeout: float = 30.0, hidden: bool | None = None) -> WebKitTab:
        """Open a page that is hidden for ever (a tab behind our own), or visible for ever (a window of its own).

        A driver cannot bring a tab to the front. Unless told otherwise the first page is hidden and all others are
        visible, which comes closest to a user who opens one tab after the other.
        """
        kind = "tab" if hidden or (hidden is None and not self._tabs) else "window"

        def open_tab() -> str:
            self._driver.switch_to.window(self._home)
            self._driver.switch_to.new_window(kind)
            return self._driver.current_window_handle

        handle = await self._command(open_tab)
        tab = WebKitTab(self, handle, await self._inspector.adopt(), len(self._tabs) + 1)
        self._tabs.append(tab)
        if url is not None:
            await tab.navigate(url, timeout=timeout)
        return tab

    async def offline(self, offline: bool) -> None:
        self._relay.open = not offline

    async def wipe(self, origin: str) -> None:
        """Delete what ``origin`` stored by a page of it: there is no command. Waits for the databases to be closed."""
        tab = await self.new_tab(f"{origin}/blank")
        await tab.evaluate(_WIPE)
        await tab.close()

    async def worker_pids(self) -> set[int]:
        return {pid for pid in self._processes() if any(name.endswith("SharedWorker") for name in thread_names(pid))}

    async def save_report(self, folder: Path) -> list[Path]:
        """Write what every tab logged, and a screenshot of each, into ``folder``; the text first. Never fails."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = [self.obituary()]
        written = []
        for tab in self._tabs:
            lines += ["", repr(tab), *(f"  {entry}" for entry in tab.log)]
            if tab.silent:
                lines.append("  (no screenshot: the page cannot answer)")
                continue
            try:
                file = folder / f"tab-{tab.number}.png"
                file.write_bytes(await tab._page.screenshot())
                written.append(file)
            except ChaosError as error:
                lines.append(f"  (no screenshot: {type(error).__name__} {error})")
        lines += ["", "The browser's own words, workers' consoles among them:", _words(self._log)]
        text = folder / "console.txt"
        text.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
        return [text, *written]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _processes(self) -> list[int]:
        return [pid for pid in descendants(self._service_pid) if _program(pid) == "WebKitWebProcess"]

    async def _command(self, work: Callable[[], T]) -> T:
        """Run a command of WebDriver when it is its turn."""
        async with self._turn:
            # One that nobody awaits any more must still be over before the next one begins.
            doing = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(doing)
            except asyncio.CancelledError:
                await asyncio.wait([doing])
                raise
            except (WebDriverException, HTTPError, OSError) as error:
                raise ChaosError(f"WebKitGTK's driver failed: {error}; {self.obituary()}") from error


class WebKitTab(ProcessTab):
    """A tab of a :class:`WebKitBrowser`; see :class:`~tabhelm.testing.driver.DrivenTab`."""

    def __init__(self, browser: WebKitBrowser, handle: str, page: PageInspector, number: int) -> None:
        super().__init__(number)
        self.browser = browser
        self._handle = handle
        self._page = page
        self._url = "about:blank"
        self._pid: int | None = None
        page.on_console = self.log.append

    @property
    def url(self) -> str:
        return self._url

    @property
    def _browser_alive(self) -> bool:
        return self.browser.alive

    async def show(self) -> None:
        """Does nothing: see ``WebKitBrowser.new_tab``."""

    async def navigate(self, url: str, *, timeout: float = 30.0) -> None:
        await self._mark_left()
        await self._load("(url) => { location.href = url; }", self._absolute(url), timeout)

    async def reload(self, *, timeout: float = 30.0) -> None:
        await self._load("() => { location.reload(); }", None, timeout)

    async def duplicate(self) -> WebKitTab:
        """There is no command for it: sessionStorage is copied here, once the page is loaded."""
        entries = await self.evaluate("() => ({ ...sessionStorage })")
        tab = await self.browser.new_tab(self._url)
        fill = (
            "(entries) => { for (const [key, value] of Object.entries(entries)) sessionStorage.setItem(key, value); }"
        )
        await tab.evaluate(fill, entries)
        return tab

    async def close(self, *, timeout: float = 30.0) -> None:
        """As an ordinary close; a stopped tab is killed, for the browser would wait for its goodbye for ever."""
        if self._closed:
            return
        if self._stopped_pid is not None:
            await self.kill_process()
        if not any(tab._died for tab in self.browser._tabs):

            def close_tab() -> None:
                self.browser._driver.switch_to.window(self._handle)
                self.browser._driver.close()

            await self.browser._command(close_tab)
        self._closed = True

    async def pid(self) -> int:
        """Takes about 0.1 s, later calls nothing until the tab navigates."""
        self._require()
        if self._stopped_pid is not None:
            return self._stopped_pid
        if self._pid is None or not process_running(self._pid):
            self._pid = await self._find_pid()
        return self._pid

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _find_pid(self, timeout: float = 10.0) -> int:
        """The process whose main thread computes while the page does: nothing else tells which is whose."""
        deadline = time.monotonic() + timeout
        total: dict[int, float] = {}
        while True:
            before = {pid: main_thread_seconds(pid) for pid in self.browser._processes()}
            await self.evaluate(_BURN, 60)
            for pid, seconds in before.items():
                total[pid] = total.get(pid, 0.0) + main_thread_seconds(pid) - seconds
            ranked = sorted(total.values(), reverse=True) + [0.0, 0.0]
            if ranked[0] > 0.03 and ranked[0] > 4 * ranked[1]:
                return max(total, key=lambda pid: total[pid])
            if time.monotonic() > deadline:
                raise ChaosError(f"cannot tell which process runs {self._label}: processor time {total}")

    async def _evaluate(self, js: str, arg: Any) -> Any:
        found = json.loads(await self._page.evaluate(_CALL.format(js=js, arg=json.dumps(arg))))
        if "error" in found:
            raise ScriptError(f"{self._label} threw {found['error']}")
        return found.get("value")

    async def _begin(self, js: str, arg: Any) -> None:
        self._require()
        await self._page.begin(f"({js})({json.dumps(arg)})")

    def _on_its_way(self, error: Exception) -> bool:
        return isinstance(error, ScriptError) and "went to another document" in str(error)

    async def _note_pids(self) -> None:
        for tab in self.browser.tabs:
            if not tab.silent:
                with contextlib.suppress(TabGone):
                    await tab.pid()

    async def _go_back(self) -> None:
        await self._leave("() => { history.back(); }", None)

    async def _leave(self, js: str, arg: Any) -> None:
        try:
            await self.evaluate(js, arg)
        except ScriptError as error:  # it may be gone before it has answered
            if not self._on_its_way(error):
                raise

    async def _load(self, js: str, arg: Any, timeout: float) -> None:
        here = await self.evaluate("() => performance.timeOrigin")
        await self._leave(js, arg)
        loaded = "(left) => performance.timeOrigin !== left && document.readyState === 'complete' && location.href"
        self._url = await self.until(loaded, timeout, "the page to be loaded", arg=here)
        self._pid = None


@contextlib.contextmanager
def _screen() -> Any:
    """A virtual screen of our own, and its name: a real one may be locked, or have another size."""
    process = subprocess.Popen(
        ["Xvfb", "-displayfd", "1", "-screen", "0", "1280x1000x24", "-nolisten", "tcp"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    undertaker = subprocess.Popen(
        ["/bin/sh", "-c", UNDERTAKER, "undertaker", str(process.pid), ""], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        number = process.stdout.readline().strip()
        if not number:
            raise BrowserGone("Xvfb did not start")
        yield f":{number}"
    finally:
        _dismiss(undertaker)
        process.kill()
        process.communicate()


def _start(options: Options, service: Service) -> WebDriver:
    with warnings.catch_warnings():
        # Selenium's own driver for WebKitGTK calls Selenium in a way that Selenium deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        return WebDriver(options=options, service=service)


def _dismiss(undertaker: subprocess.Popen[Any]) -> None:
    undertaker.kill()
    undertaker.communicate()


def _end(service: Service) -> None:
    process = getattr(service, "process", None)
    if process is None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _program(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def _inspector_port(service_pid: int) -> int:
    """Where the MiniBrowser that the driver started serves its inspector: the driver chose it."""
    for pid in descendants(service_pid):
        if _program(pid) == "MiniBrowser":
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if entry.startswith(b"WEBKIT_INSPECTOR_SERVER="):
                    return int(entry.rpartition(b":")[2])
    raise BrowserGone("WebKitWebDriver started no MiniBrowser with an inspector")


def _words(log: Path) -> str:
    try:
        return log.read_text(errors="replace").strip()
    except OSError:  # it went with the profile
        return ""


def _last_words(log: Path) -> str:
    text = _words(log)
    return f"its last words: {text[-600:]}" if text else "it said nothing"
