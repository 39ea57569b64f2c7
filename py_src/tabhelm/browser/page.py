"""Where a page's own Python enters: ``tabhelm.join``; and what only the page knows: its lifecycle, its tab's memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from tabhelm.browser import browser_ports
from tabhelm.browser._js import create_proxy, js, js_exception
from tabhelm.browser.desk import LockDesk
from tabhelm.errors import InvalidName, NotInBrowser
from tabhelm.json_text import loads
from tabhelm.names import check_part
from tabhelm.ports import LifecycleEvent, PageState

if TYPE_CHECKING:
    from tabhelm.host.joined import JoinedTab, Joining

_DOCUMENT_EVENTS = ("visibilitychange", "freeze", "resume")
_PAGE_EVENTS = ("pagehide", "pageshow")
_NETWORK_EVENTS = ("online", "offline")


def join(
    *,
    app: str,
    protocol: int = 1,
    version: str = "",
    capabilities: Iterable[str] = (),
    user_session: str | None = None,
    stall_after: float = 10.0,
) -> Joining:
    """Join the tabs of ``app``: ``async with tabhelm.join(app="regcase") as tab:``, or ``tab = await tabhelm.join(…)``.

    Runs in a page's main thread (``tab.host == "window"``), or in a dedicated worker of a page (``"worker"``), which
    is told nothing of its page's lifecycle. The tab meets all tabs of the same origin, ``app`` and ``protocol``, also
    those that use the JavaScript bundle. A page may join more than once; each join is a tab with an id of its own.

    Args:
        app: name of the application; letters, digits, ``.``, ``_`` and ``-``.
        protocol: version of what the app's tabs agree upon; tabs of another one have leaders of their own.
        version: of the app, for display.
        capabilities: what this tab can do; policies ask for them (``requires``).
        user_session: who is signed in (``user:123``); queues with another scope are not flushed by this tab.
        stall_after: seconds; a page that stood still for longer gives its leadership up when it goes on.

    Raises:
        NotInBrowser: this Python runs neither in a page nor in a page's worker.
        NoAuthority: the context has neither Web Locks nor IndexedDB (an opaque origin, blocked site data).
        InvalidName, InvalidPolicy: an argument is not allowed; names it.
    """
    from tabhelm.host.joined import JoinedTab, Joining  # the host is above this room: only its entry is known here
    from tabhelm.host.page import JoinOptions, PageHost

    options = JoinOptions(
        app=app,
        protocol=protocol,
        version=version,
        capabilities=capabilities,
        user_session=user_session,
        stall_after=stall_after,
    )
    host = _where()

    async def enter() -> JoinedTab:
        page = PageHost(browser_ports(LockDesk()), BrowserLifecycle(host), BrowserMemory(app), options)
        await page.enter()
        return JoinedTab(page, host)

    return Joining(enter)


def _where() -> Literal["window", "worker"]:
    if sys.platform == "emscripten":
        scope = js()
        if hasattr(scope, "WorkerGlobalScope"):
            return "worker"
        if getattr(scope, "document", None):
            return "window"
    raise NotInBrowser(
        "tabhelm.join() needs a browser: call it from Python that runs in a page (Pyodide, PyScript); on a server, "
        "tabhelm.server has the receiving end"
    )


class BrowserLifecycle:
    """The events of document and window, or of a worker, which hears of the network alone."""

    def __init__(self, host: Literal["window", "worker"]) -> None:
        scope = js()
        self._document: Any = scope.document if host == "window" else None
        self._frozen = False
        self._navigator: Any = scope.navigator
        self._callback: Callable[[LifecycleEvent], None] | None = None
        self._listener = self._came  # our own reference: the proxy may be destroyed while it is running
        self._proxy: Any = None
        self._listening: list[tuple[Any, str]] = [(scope, name) for name in _NETWORK_EVENTS]
        if self._document is not None:
            self._listening += [(self._document, name) for name in _DOCUMENT_EVENTS]
            self._listening += [(scope, name) for name in _PAGE_EVENTS]

    def state(self) -> PageState:
        online = bool(self._navigator.onLine)  # asked each time: its events do not always come
        if self._document is None:
            return PageState("unknown", True, online)
        visible = self._document.visibilityState == "visible"
        return PageState("frozen" if self._frozen else "active" if visible else "hidden", visible, online)

    def subscribe(self, callback: Callable[[LifecycleEvent], None]) -> None:
        self._callback = callback
        if self._proxy is None:
            self._proxy = create_proxy(self._listener)
            for target, name in self._listening:
                target.addEventListener(name, self._proxy)

    def close(self) -> None:
        self._callback = None
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            for target, name in self._listening:
                target.removeEventListener(name, proxy)
            proxy.destroy()

    def _came(self, event: Any) -> None:
        name = event.type
        if name == "freeze":
            self._frozen = True
        elif name in ("resume", "pageshow"):
            if name == "pageshow" and not event.persisted:
                return  # the first time, not back from the cache
            self._frozen = False
        if self._callback is not None:
            self._callback(name if name in ("freeze", "resume", "pagehide", "pageshow") else "changed")


class BrowserMemory:
    """The tab's id in sessionStorage, under the key and in the form of the JavaScript client: whoever joins, it is the
    same tab. Where storage is denied (or missing: a worker), the id lives as long as the join."""

    _ours: set[tuple[str, str]] = set()
    """Ids that joins of this very page have now. A second join takes one of its own, but the tab keeps the first."""

    def __init__(self, app: str) -> None:
        self._key = f"tabhelm:{app}:tab"

    def read(self) -> tuple[str, int] | None:
        stored = self._stored()
        return None if stored is None or (self._key, stored[0]) in self._ours else stored

    def write(self, tab_id: str, generation: int) -> None:
        stored = self._stored()
        if stored is None or stored[0] == tab_id or (self._key, stored[0]) not in self._ours:
            try:
                storage = js().sessionStorage
                storage.setItem(self._key, json.dumps({"id": tab_id, "generation": generation}))
            except (js_exception(), AttributeError):
                pass  # denied or full
        self._ours.add((self._key, tab_id))

    def release(self, tab_id: str) -> None:
        self._ours.discard((self._key, tab_id))

    def _stored(self) -> tuple[str, int] | None:
        try:
            text = js().sessionStorage.getItem(self._key)
            value = loads(text) if isinstance(text, str) else None
        except (js_exception(), AttributeError, ValueError):
            return None  # denied, missing or damaged
        if not isinstance(value, dict):
            return None
        tab_id, generation = value.get("id"), value.get("generation")
        if not isinstance(generation, int) or isinstance(generation, bool) or not 0 <= generation < 2**53 - 1:
            return None
        try:
            return check_part("tab id", tab_id), generation
        except InvalidName:
            return None
