"""What a test may ask of a browser, whichever engine it has: cases written against this run in all of them.

===========  =======================================================================================================
engine       driven by
===========  =======================================================================================================
`chromium`   :class:`~tabhelm.testing.ChaosBrowser`, over the DevTools protocol
`firefox`    :class:`~tabhelm.testing.FirefoxBrowser`, over WebDriver BiDi (Playwright) and Firefox's own debugger port
`webkit`     :class:`~tabhelm.testing.WebKitBrowser`, WebKitGTK's MiniBrowser over classic WebDriver (Selenium)
===========  =======================================================================================================

What an engine cannot do stands in ``browser.lacks`` with its reason; a case that needs it asks there, and skips.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

Engine = Literal["chromium", "firefox", "webkit"]
ENGINES: tuple[Engine, ...] = ("chromium", "firefox", "webkit")

Ability = Literal["freeze", "bfcache", "navigator.onLine"]
"""What not every engine can do, or not when it is driven. ``freeze``: the page lifecycle's. ``bfcache``: a page that
held a lock comes back alive. ``navigator.onLine``: it follows ``offline()``."""


class DrivenTab(Protocol):
    """One tab. Times are seconds; whatever asks a page that is gone raises :class:`~tabhelm.testing.TabGone`."""

    number: int
    """1 for the first tab of the browser, and so on; names the tab in errors and reports."""
    log: deque[str]
    """Console messages and uncaught errors, oldest first, as far as the engine tells them."""

    @property
    def url(self) -> str: ...

    @property
    def gone(self) -> bool:
        """Whether the tab is closed or its process died."""
        ...

    @property
    def silent(self) -> bool:
        """Whether, as far as the driver did it, the page cannot answer now: gone, stopped or hung."""
        ...

    async def evaluate(self, js: str, arg: Any = None, *, timeout: float = 30.0) -> Any:
        """Run an expression or a function (``"(arg) => …"``) in the page, under any CSP; returns its awaited result.

        Raises:
            TabUnresponsive: no result within ``timeout`` seconds.
            Exception: the code threw; the message holds the page's error. Which class depends on the engine.
        """
        ...

    async def until(self, js: str, timeout: float = 30.0, what: str | None = None, *, arg: Any = None) -> Any:
        """Evaluate ``js`` again and again, from outside, until its answer is true, and return that answer.

        Raises:
            WaitTimeout: it stayed false for ``timeout`` seconds, or the page did not answer.
            ScriptError: ``js`` threw; the message names it and the page's error.
        """
        ...

    async def show(self) -> None:
        """Bring the tab to the front: it is visible then, and every other tab that can answer is hidden."""
        ...

    async def navigate(self, url: str, *, timeout: float = 30.0) -> None:
        """Go to ``url`` (relative to the present one) and wait until it is loaded."""
        ...

    async def reload(self, *, timeout: float = 30.0) -> None: ...

    async def back(self, *, timeout: float = 30.0) -> bool:
        """Go one step back; tells whether the page was restored from the back/forward cache."""
        ...

    async def duplicate(self) -> DrivenTab:
        """Open what "Duplicate tab" opens: the same URL with a copy of this tab's sessionStorage."""
        ...

    async def close(self, *, timeout: float = 30.0) -> None:
        """Close the tab; an answering page's ``pagehide`` handlers run. Closing a closed tab does nothing."""
        ...

    async def hang(self, seconds: float) -> None:
        """Keep the page's main thread busy for so long; returns at once, when the loop is about to start."""
        ...

    async def stop(self) -> None:
        """Stop the process of the tab (SIGSTOP): the truest stall, without any event in the page."""
        ...

    async def cont(self) -> None:
        """Let a stopped process go on (SIGCONT). Does nothing if it is not stopped."""
        ...

    async def kill_process(self, timeout: float = 30.0) -> None:
        """Kill the process of the tab (SIGKILL), and all else that lives there; waits until that is noticed."""
        ...

    async def pid(self) -> int:
        """Id of the process that runs the page."""
        ...


class DrivenBrowser(Protocol):
    """One running browser with at least one profile of its own."""

    engine: Engine
    lacks: Mapping[Ability, str]
    """What this engine cannot do here → why."""

    @property
    def version(self) -> str:
        """What the browser calls itself."""
        ...

    @property
    def alive(self) -> bool: ...

    @property
    def tabs(self) -> Sequence[DrivenTab]:
        """The tabs that are not closed (crashed ones included), oldest first."""
        ...

    def obituary(self) -> str:
        """One line about how the browser ended, with its last words."""
        ...

    async def new_tab(self, url: str | None = None, *, timeout: float = 30.0) -> DrivenTab:
        """Open a tab in front of the others and go to ``url``."""
        ...

    async def offline(self, offline: bool) -> None:
        """Cut the whole browser off the network, shared workers included, or join it again: all requests fail."""
        ...

    async def wipe(self, origin: str) -> None:
        """Delete what ``origin`` (``http://127.0.0.1:8765``) stored, under its running tabs."""
        ...

    async def worker_pids(self) -> set[int]:
        """Ids of the processes that run workers (in our tests: shared workers)."""
        ...

    async def save_report(self, folder: Path) -> list[Path]:
        """Write what was logged, and a screenshot of each tab, into ``folder``; the text first. Never fails."""
        ...
