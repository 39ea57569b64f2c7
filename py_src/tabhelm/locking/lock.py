"""A lock of the app's own that a tab holds, and the body under it.

The engine holds it in the name of the tab's connection, like everything that a tab has: a page that freezes, hangs,
goes into the back/forward cache or dies lets go at once, and its body is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from tabhelm.errors import InvalidName, LockLost
from tabhelm.locking.hub import LockHub
from tabhelm.locking.interruption import Interruption
from tabhelm.names import MAX_NAME, Kind, LockName
from tabhelm.observe import HeldLockLost
from tabhelm.ports import HeldLock, LockEnd


def lock_name(app: str, protocol: int, kind: Kind, name: str, scope: str | None = None) -> str:
    """The full name of a lock.

    Raises:
        InvalidName: a part is not allowed, or the whole is too long.
    """
    text = str(LockName(app, protocol, kind, name, scope))
    if len(text) > MAX_NAME:
        raise InvalidName(f"lock {name[:60]!r} makes a name of {len(text)} characters; at most {MAX_NAME} are allowed")
    return text


class Who(NamedTuple):
    """A tab as its locks need to know it. ``trouble``: why it may hold none now (``frozen``, ``stalled``,
    ``closing``), else empty."""

    tab: str
    connection: str
    trouble: str


class Lock:
    """A lock that this tab holds. ``async with tab.lock(…) as lock`` gives it; the body may ask whether it is held."""

    def __init__(self, hub: LockHub, held: HeldLock, shared: bool, who: Callable[[], Who]) -> None:
        self._hub = hub
        self._lock = held
        self._who = who
        self._on_lost: Callable[[str], None] | None = None
        self._lost: str | None = None
        self._over = False
        self.shared = shared
        """Whether others may hold it, shared, at the same time."""
        self.tab = who().tab
        self.since = hub.clock.monotonic()
        """When it was granted, by this engine's monotonic clock (seconds)."""
        self.task = asyncio.current_task()
        hub.add(self)
        held.on_end(self._ended)

    def __repr__(self) -> str:
        return f"<Lock {self.name} {'held' if self.held else self.lost or 'released'}>"

    @property
    def name(self) -> str:
        """The Web Lock's full name."""
        return self._lock.name

    @property
    def held(self) -> bool:
        """Whether it is held now. False as soon as the page froze, hung or left, even before the body is cancelled."""
        return self._lost is None and not self._over and self._lock.held

    @property
    def lost(self) -> str | None:
        """Why it was lost, in one short word; ``None`` while it is held, and after an ordinary release."""
        if self._lost is not None or self._over or self._lock.held:
            return self._lost
        return "lock-stolen" if self._lock.ended == "stolen" else self._who().trouble or "lock-lost"

    def check(self) -> None:
        """Ask before something that only a holder may do.

        Raises:
            LockLost: it is held no more.
        """
        if not self.held:
            raise LockLost(self.name, self.lost or "released")

    def release(self) -> None:
        """Let go at once; harmless when it has ended."""
        if self._over:
            return
        lost = self.lost
        if self._lost is None and lost is not None:
            self._note(lost)
        self._over = True
        self._on_lost = None
        self._hub.remove(self)
        self._lock.release()

    def lose(self, reason: str) -> None:
        """Let go because the tab may not hold it any more; its body is told."""
        if not self._over and self._lost is None:
            self._note(reason)
            self._lock.release()
            self._tell()

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Call back once if it is lost (not when it is released). One callback."""
        self._on_lost = callback
        if self._lost is not None:
            self._tell()

    def look(self) -> None:
        """The tab's state changed: if that cost the lock, note why, as long as it is known."""
        lost = self.lost
        if lost is not None and self._lost is None:
            self._note(lost)
            self._tell()

    def _ended(self, _: LockEnd) -> None:
        self.look()

    def _note(self, reason: str) -> None:
        hub = self._hub
        self._lost = reason
        hub.remove(self)
        hub.events.emit(HeldLockLost(self.name, self.tab, reason, (hub.clock.monotonic() - self.since) * 1000))

    def _tell(self) -> None:
        callback, self._on_lost = self._on_lost, None
        if callback is not None and self._lost is not None:
            callback(self._lost)


class Holding:
    """A body under a lock: it is cancelled when the lock is lost, and ``LockLost`` comes out of it. The lock is free as
    soon as the body ends, however it ends."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._interruption = Interruption()
        lock.on_lost(self._interruption.end)

    def over(self, error: BaseException | None) -> None:
        """The body has ended with this error.

        Raises:
            LockLost: the lock was lost, and nothing else went wrong.
        """
        lock = self._lock
        lock.release()
        interrupted = self._interruption.caught()
        if lock.lost is not None and (error is None or (interrupted and isinstance(error, asyncio.CancelledError))):
            raise LockLost(lock.name, lock.lost) from None
