"""The locks of one tab: asking, waiting, giving up.

A request waits in line as the browser has it, first in, first out. It is withdrawn the moment its page freezes, hangs
or goes away (the browser would grant the lock to a page that stands still), and made again when the page goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from tabhelm.errors import LockReentered, LockTimeout, LockUnavailable, LockWithdrawn, NotJoined
from tabhelm.locking.hub import LONGEST_ASK, Holder, LockHub, told
from tabhelm.locking.interruption import Interruption
from tabhelm.locking.lock import Holding, Lock, Who, lock_name
from tabhelm.observe import LockTimedOut
from tabhelm.ports import HeldLock, Timer

_TIMED_OUT = "timed-out"
_LEFT = "left"
_MOMENT = 0.5
"""Seconds for an answer that was asked for late."""
BRIEF = 0.1
"""Seconds. A timeout that short might pass while the browser's word is on its way: the lock is tried for at once first,
and the time counts from the answer."""


class LockRequest:
    """``async with tab.lock(…) as lock``: waits for the lock, and holds it as long as the body runs. For one use."""

    def __init__(self, locks: TabLocks, name: str, shared: bool, if_available: bool, timeout: float | None) -> None:
        self._locks = locks
        self._name = name
        self._shared = shared
        self._if_available = if_available
        self._timeout = timeout
        self._holding: Holding | None = None

    async def __aenter__(self) -> Lock:
        lock = await self._locks.acquire(
            self._name, shared=self._shared, if_available=self._if_available, timeout=self._timeout
        )
        self._holding = Holding(lock)
        return lock

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.over(error)


class TabLocks:
    """The locks of one tab. ``who`` says who it is now: its connection changes when its page is restored."""

    def __init__(self, hub: LockHub, who: Callable[[], Who]) -> None:
        self.hub = hub
        self._who = who
        self._left: str | None = None
        self._held: dict[Lock, None] = {}
        self._asking: dict[Interruption, None] = {}
        self._kept_out: list[asyncio.Future[None]] = []

    @property
    def tab(self) -> str:
        """The tab's id."""
        return self._who().tab

    def request(
        self, name: str, *, scope: str | None, shared: bool, if_available: bool, timeout: float | None
    ) -> LockRequest:
        """See ``Tab.lock``."""
        if timeout is not None and not 0 <= timeout < 2**31:
            raise ValueError(f"timeout {timeout!r} of lock {name!r} is not valid: seconds, at least 0, or None")
        if if_available and timeout is not None:
            raise ValueError(f"lock {name!r}: if_available never waits, so timeout can mean nothing: leave one out")
        full = lock_name(self.hub.app, self.hub.protocol, "mutation", name, scope)
        return LockRequest(self, full, shared, if_available, timeout)

    async def acquire(
        self,
        name: str,
        *,
        shared: bool = False,
        if_available: bool = False,
        timeout: float | None = None,
        again: bool = True,
    ) -> Lock:
        """Wait for the lock with this full name. Cancelling withdraws the request.

        ``again``: a request that is withdrawn because the page froze or went away is made again when it is back.

        Raises:
            LockTimeout, LockUnavailable, LockReentered: see ``Tab.lock``.
            LockWithdrawn: the page may hold nothing now, and ``again`` is false.
            NotJoined: the tab has left.
            NoAuthority: this context can have no locks.
        """
        self._require_joined()
        task = asyncio.current_task()
        if any(lock.task is task for lock in self.hub.held(name)):
            if if_available:
                raise LockUnavailable(name)
            raise LockReentered(f"lock {name!r} is held by the very code that asks for it: it would wait for ever")
        interruption = Interruption()
        deadline = None
        self._asking[interruption] = None
        try:
            held = None
            if timeout is not None and timeout < BRIEF:
                held = await self._ask(name, shared, True, again)
            if held is None:
                deadline = None if timeout is None else _Deadline(self.hub, name, timeout, interruption)
                held = await self._ask(name, shared, if_available, again)
        except asyncio.CancelledError:
            if not interruption.caught():
                raise
            if interruption.cause == _TIMED_OUT and deadline is not None:
                raise deadline.error(self.tab) from None
            raise self._not_joined() from None
        finally:
            interruption.close()
            del self._asking[interruption]
            if deadline is not None:
                deadline.close()
        if held is None:
            raise LockUnavailable(name)
        lock = Lock(self.hub, held, shared, self._who)
        self._held = {each: None for each in self._held if each.held}
        self._held[lock] = None
        return lock

    async def _ask(self, name: str, shared: bool, if_available: bool, again: bool) -> HeldLock | None:
        locks = self.hub.locks
        while True:
            owner = self._who().connection
            try:
                mode = "shared" if shared else "exclusive"
                return await locks.acquire(name, owner=owner, mode=mode, if_available=if_available)  # type: ignore[arg-type]
            except LockWithdrawn:
                if not again:
                    raise
            while not locks.admitted(self._who().connection):
                await self._admission()

    async def _admission(self) -> None:
        """Wait until the page's state changes: it may be back."""
        kept_out = asyncio.get_running_loop().create_future()
        self._kept_out.append(kept_out)
        try:
            await kept_out
        finally:
            self._kept_out.remove(kept_out)

    def look(self) -> None:
        """The page's state has changed."""
        for lock in list(self._held):
            lock.look()
        for kept_out in self._kept_out:
            if not kept_out.done():
                kept_out.set_result(None)

    def leave(self, reason: str) -> None:
        """The tab leaves: everything is let go, nothing is waited for."""
        self._left = reason
        for interruption in list(self._asking):
            interruption.end(_LEFT)
        held, self._held = self._held, {}
        for lock in held:
            lock.lose(reason)

    def _require_joined(self) -> None:
        if self._left is not None:
            raise self._not_joined()

    def _not_joined(self) -> NotJoined:
        return NotJoined(f"tab {self.tab!r} has left ({self._left}): join again")


class _Deadline:
    """Ends a wait in time; shortly before, asks who is to blame."""

    def __init__(self, hub: LockHub, name: str, timeout: float, interruption: Interruption) -> None:
        self._hub = hub
        self._name = name
        self._timeout = timeout
        self._interruption = interruption
        self._notice = min(_MOMENT, timeout / 4)
        self._asked_at = hub.clock.monotonic()
        self._numbers: list[int] = []
        # Early, for an answer may take its time; and late, for the holder may be another one by then.
        self._timers: list[Timer] = [
            hub.clock.call_later(timeout - min(LONGEST_ASK, timeout / 2), self._ask),
            hub.clock.call_later(timeout - self._notice, self._ask),
            hub.clock.call_later(timeout, self._due),
        ]

    def _ask(self) -> None:
        self._asked_at = self._hub.clock.monotonic()
        self._numbers.append(self._hub.ask(self._name, self._end))

    def _holders(self) -> list[Holder]:
        """As the newest answers have it."""
        known = (self._hub.holders(self._name, number) for number in reversed(self._numbers))
        return next(filter(None, known), self._hub.holders(self._name, None))

    def _due(self) -> None:
        hub = self._hub
        # A hidden page's timers are held back and come together. Messages are not: a moment more, for the answer.
        too_soon = hub.clock.monotonic() - self._asked_at < self._notice / 2
        if too_soon and not self._holders():
            hub.hasten(self._numbers[-1] if self._numbers else None)
            self._timers.append(hub.clock.call_later(_MOMENT, self._end))
        else:
            self._end()

    def _end(self) -> None:
        self._interruption.end(_TIMED_OUT)

    def error(self, own_tab: str) -> LockTimeout:
        holders = self._holders()
        first = max(holders, key=lambda holder: holder.age, default=None)
        who, age = (None, None) if first is None else (first.tab, first.age)
        self._hub.events.emit(LockTimedOut(self._name, own_tab, self._timeout * 1000, who))
        unasked = not holders and self._timeout < BRIEF
        why = "there was no time to ask who holds it" if unasked else told(holders, own_tab)
        return LockTimeout(
            f"lock {self._name!r} was not free within {self._timeout:g} s: {why}",
            name=self._name,
            holder=who,
            held_for=age,
        )

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for number in self._numbers:
            self._hub.forget(number)
