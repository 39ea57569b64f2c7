"""The lock desk of ``desk.mjs`` in Python, for pages that run their own interpreter.

Same interface, same rules: every Web Lock of one join, grouped by owner, so that all that a page holds or waits for is
let go in one synchronous step inside its ``freeze`` or ``pagehide`` handler. Nothing of that goes through asyncio,
whose callbacks come one task later: then the page may stand still already.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

from tabhelm.browser._js import Thrown, js, to_js_value

Listener = Callable[..., Any]
"""Called with what happened (see ``LockDesk.request``), and after ``failed`` with a message."""

_WITHDRAWN = frozenset({"AbortError", "InvalidStateError"})
"""Names of errors that say "not now", as opposed to "never in this context"."""


class Entry:
    """One request, from the call until the lock ends."""

    __slots__ = ("_controller", "_desk", "_let_go", "_listener", "held", "name", "owner", "wanted")

    def __init__(self, desk: LockDesk, owner: str, name: str, listener: Listener) -> None:
        self.owner = owner
        self.name = name
        self.held = False
        self.wanted = True
        self._desk = desk
        self._listener: Listener | None = listener
        self._controller: Any = None
        self._let_go: Any = None

    def ask(self, manager: Any, mode: str, if_available: bool, steal: bool) -> None:
        """Hand the request to the browser."""
        options: dict[str, object] = {"mode": mode}
        # The specification allows a signal neither with ``steal`` nor with ``ifAvailable``; both answer at once anyway.
        if if_available or steal:
            given = to_js_value({**options, "ifAvailable": if_available, "steal": steal})
        else:
            given = to_js_value(options)
            self._controller = js().AbortController.new()
            given.signal = self._controller.signal
        # A promise comes back, so the runtime keeps our function alive until that settles, and not longer.
        manager.request(self.name, given, self.granted).then(_settled, self._rejected)

    def granted(self, lock: Any) -> Any:
        """The lock manager's callback. The lock is kept as long as the returned promise is pending."""
        # First of all: a request that was taken back may still be granted (it was under way); it must not be kept.
        if not self.wanted:
            return None
        if not lock:  # JavaScript's null, which is not None
            self.end("unavailable")
            return None
        self.held = True
        kept = js().Promise.new(self._keep)
        self.tell("granted")
        return kept

    def _keep(self, resolve: Any, _reject: Any) -> None:
        self._let_go = resolve

    def _rejected(self, error: Any) -> None:
        if not self.wanted:
            return  # our own abort
        thrown = Thrown.of(error)
        # A held lock's promise is rejected in one case only: another context stole the lock.
        if self.held:
            self.end("stolen")
        elif thrown.name in _WITHDRAWN:
            self.end("withdrawn")
        else:
            self.end("failed", str(thrown))

    def release(self) -> None:
        """Let go of a held lock; harmless otherwise."""
        if self.held:
            self.end("released")

    def abort(self) -> None:
        """Take the request back, or let go of the lock if it was granted meanwhile; harmless when it has ended."""
        if self.held:
            self.end("released")
        elif self.wanted:
            self.end("withdrawn")

    def let(self) -> None:
        """Stop holding and waiting, now. Tells nobody: see ``end`` and ``LockDesk.drop``."""
        self.held = False
        self.wanted = False
        let_go, self._let_go = self._let_go, None
        controller, self._controller = self._controller, None
        if let_go is not None:
            let_go()
        elif controller is not None:
            controller.abort()
        self._desk.forget(self)

    def end(self, what: str, message: str | None = None) -> None:
        self.let()
        self.tell(what, message)
        self._listener = None

    def tell(self, what: str, message: str | None = None) -> None:
        if self._listener is None:
            return
        try:
            if message is None:
                self._listener(what)
            else:
                self._listener(what, message)
        except Exception:
            failure = traceback.format_exc()
            js().console.error(f"tabhelm: the listener of lock {self.name} failed on {what!r}\n{failure}")


def _settled(_result: object) -> None:
    pass


class LockDesk:
    """All lock requests of one join. Owner ``""`` is the join itself: always admitted."""

    def __init__(self, manager: Any = None) -> None:
        self._manager = manager if manager is not None else getattr(js().navigator, "locks", None)
        self._owners: dict[str, dict[Entry, None]] = {"": {}}

    def admit(self, owner: str) -> None:
        """Let ``owner`` ask for locks (again)."""
        self._owners.setdefault(owner, {})

    def admitted(self, owner: str) -> bool:
        """Whether ``owner`` may ask."""
        return owner in self._owners

    def drop(self, owner: str) -> None:
        """Release all that ``owner`` holds and withdraw all that it waits for, before returning; shut it out."""
        entries = list(self._owners.get(owner, ()))
        if owner:
            self._owners.pop(owner, None)
        ends = ["dropped" if entry.held else "withdrawn" for entry in entries]
        for entry in entries:
            entry.let()  # all are let go before anybody is told, which may take its time
        for entry, end in zip(entries, ends, strict=True):
            entry.end(end)

    def request(self, owner: str, name: str, mode: str, if_available: bool, steal: bool, listener: Listener) -> Entry:
        """Ask for a lock. The listener is called (never before this returns) with ``granted``, ``unavailable``,
        ``withdrawn`` or ``failed`` and a message, and after a grant once with ``released``, ``dropped`` or ``stolen``.
        """
        entry = Entry(self, owner, name, listener)
        entries = self._owners.get(owner)
        if entries is None:
            self._refuse(entry, "withdrawn")
        elif not self._manager:
            self._refuse(entry, "failed", "this context has no Web Locks (they need a secure context)")
        else:
            entries[entry] = None
            entry.ask(self._manager, mode, if_available, steal)
        return entry

    @staticmethod
    def _refuse(entry: Entry, what: str, message: str | None = None) -> None:
        def refuse() -> None:
            if entry.wanted:
                entry.end(what, message)

        asyncio.get_event_loop().call_soon(refuse)

    def forget(self, entry: Entry) -> None:
        """Called by an entry that ended."""
        self._owners.get(entry.owner, {}).pop(entry, None)

    @property
    def size(self) -> int:
        """How many requests are held or waiting, for tests and diagnosis."""
        return sum(map(len, self._owners.values()))
