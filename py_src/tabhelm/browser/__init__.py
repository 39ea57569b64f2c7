"""The ports, answered by the real browser (Pyodide 314). The only room that imports ``js`` and ``pyodide``.

Everything here can be imported on CPython and into a memory snapshot: JavaScript is touched only when a port is used,
and no JavaScript object is kept at module level.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from tabhelm.browser.channel import BrowserChannels
from tabhelm.browser.clock import BrowserClock
from tabhelm.browser.database import BrowserDatabases
from tabhelm.browser.entropy import BrowserEntropy
from tabhelm.browser.http import BrowserHttp
from tabhelm.browser.locks import BrowserLocks
from tabhelm.browser.storage import BrowserStorage
from tabhelm.ports import Ports

_ELSEWHERE = ("tabhelm.server", "tabhelm.testing", "tabhelm.simulated")
"""Rooms that never run inside a page."""

_STANDARD = (
    "asyncio",
    "base64",
    "collections",
    "contextlib",
    "contextvars",
    "dataclasses",
    "email.utils",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "importlib",
    "inspect",
    "itertools",
    "json",
    "logging",
    "math",
    "operator",
    "random",
    "re",
    "traceback",
    "types",
    "typing",
    "urllib.parse",
    "uuid",
    "weakref",
)
"""Modules of the standard library that the engine or its leader loops are sure to need. Each import spared at boot
is worth milliseconds; but a snapshot whose heap outgrows the runtime's initial 30 MiB cannot be restored."""


def browser_ports(desk: Any) -> Ports:
    """All ports of this context. ``desk`` is its ``LockDesk`` (``desk.mjs``); there is one a context."""
    clock = BrowserClock()
    return Ports(
        clock=clock,
        entropy=BrowserEntropy(),
        locks=BrowserLocks(desk),
        channels=BrowserChannels(),
        databases=BrowserDatabases(clock),
        http=BrowserHttp(clock),
        storage=BrowserStorage(),
    )


def snapshot_modules() -> list[str]:
    """Names of all modules to import before the memory snapshot is made."""
    import tabhelm

    return [*_STANDARD, "tabhelm", *_modules(tabhelm.__path__, "tabhelm.")]


def _modules(path: Iterable[str], prefix: str) -> Iterator[str]:
    for module in pkgutil.iter_modules(path, prefix):
        if module.name in _ELSEWHERE:
            continue
        yield module.name
        if module.ispkg:
            yield from _modules(import_module(module.name).__path__, f"{module.name}.")


__all__ = ["browser_ports", "snapshot_modules"]
