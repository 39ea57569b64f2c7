"""Real-tab chaos for pytest: drive a real Chromium and let its tabs hide, freeze, hang, crash and come back.

::

    async with ChaosBrowser.launch() as browser:
        a = await browser.new_tab(url)
        b = await browser.new_tab(url)      # in front: a is really hidden now
        await a.freeze()                    # timers stand still, the "freeze" event has fired
        await b.until("() => window.leads")
        await b.crash()
        await a.thaw()

:mod:`tabhelm.testing.pytest_plugin` has the fixtures; ``pip install tabhelm[test]`` has what they need (Playwright,
pytest-asyncio). The tabs need a Chromium on the machine, which Playwright neither downloads nor starts here.
The names below are loaded when first used, so that :mod:`tabhelm.testing.history` works without Playwright.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .browser import ChaosBrowser
    from .errors import BrowserGone, ChaosError, TabGone, TabUnresponsive, WaitTimeout
    from .process import find_chromium
    from .shared_worker import SharedWorkerHandle
    from .tab import ChaosTab
    from .waiting import wait_for

__all__ = [
    "BrowserGone",
    "ChaosBrowser",
    "ChaosError",
    "ChaosTab",
    "SharedWorkerHandle",
    "TabGone",
    "TabUnresponsive",
    "WaitTimeout",
    "find_chromium",
    "wait_for",
]

_HOMES = {
    "ChaosBrowser": "browser",
    "ChaosTab": "tab",
    "SharedWorkerHandle": "shared_worker",
    "find_chromium": "process",
    "wait_for": "waiting",
    **dict.fromkeys(("BrowserGone", "ChaosError", "TabGone", "TabUnresponsive", "WaitTimeout"), "errors"),
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "playwright":
            raise ModuleNotFoundError(
                f"tabhelm.testing.{name} needs Playwright: pip install tabhelm[test]", name=error.name
            ) from error
        raise
    return getattr(module, name)
