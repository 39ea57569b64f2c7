"""Real-tab chaos for pytest: drive real browsers and let their tabs hide, freeze, hang, crash and come back.

::

    async with ChaosBrowser.launch() as browser:
        a = await browser.new_tab(url)
        b = await browser.new_tab(url)      # in front: a is really hidden now
        await a.freeze()                    # timers stand still, the "freeze" event has fired
        await b.until("() => window.leads")
        await b.crash()
        await a.thaw()

:mod:`tabhelm.testing.pytest_plugin` has the fixtures; ``pip install '.[test]'`` in a checkout has what they need
(Playwright, Selenium, pytest-asyncio). The tabs need a Chromium on the machine, which Playwright neither downloads nor
starts here.
Cases for every engine are written against :mod:`tabhelm.testing.driver`, which Firefox and WebKitGTK have as well;
:mod:`tabhelm.testing.pytest_engines` has the fixtures.
The names below are loaded when first used, so that :mod:`tabhelm.testing.history` works without Playwright.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .browser import ChaosBrowser
    from .driver import DrivenBrowser, DrivenTab
    from .errors import BrowserGone, ChaosError, ScriptError, TabGone, TabUnresponsive, WaitTimeout
    from .firefox import FirefoxBrowser
    from .process import find_chromium
    from .shared_worker import SharedWorkerHandle
    from .tab import ChaosTab
    from .waiting import wait_for
    from .webkit import WebKitBrowser

__all__ = [
    "BrowserGone",
    "ChaosBrowser",
    "ChaosError",
    "ChaosTab",
    "DrivenBrowser",
    "DrivenTab",
    "FirefoxBrowser",
    "ScriptError",
    "SharedWorkerHandle",
    "TabGone",
    "TabUnresponsive",
    "WaitTimeout",
    "WebKitBrowser",
    "find_chromium",
    "wait_for",
]

_HOMES = {
    "ChaosBrowser": "browser",
    "ChaosTab": "tab",
    "DrivenBrowser": "driver",
    "DrivenTab": "driver",
    "FirefoxBrowser": "firefox",
    "WebKitBrowser": "webkit",
    "SharedWorkerHandle": "shared_worker",
    "find_chromium": "process",
    "wait_for": "waiting",
    **dict.fromkeys(
        ("BrowserGone", "ChaosError", "ScriptError", "TabGone", "TabUnresponsive", "WaitTimeout"), "errors"
    ),
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in ("playwright", "selenium"):
            raise ModuleNotFoundError(
                f"tabhelm.testing.{name} needs {error.name.partition('.')[0]}: in a checkout of tabhelm, "
                "pip install '.[test]'",
                name=error.name,
            ) from error
        raise
    return getattr(module, name)
