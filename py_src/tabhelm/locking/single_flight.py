"""One tab does it, all that asked meanwhile get what it gave.

Who is granted the lock does it. The others are next in line for the lock, so that one of them does it when the first
dies, freezes or hangs; and they listen for what the first says *before* it lets go. Message and lock come by different
ways: who is granted the lock first waits a little for the message, unless there is no other engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from tabhelm.errors import LockTimeout, LockUnavailable
from tabhelm.locking.hub import LockHub
from tabhelm.locking.interruption import Interruption
from tabhelm.locking.lock import Holding, Lock, lock_name
from tabhelm.locking.outcome import Outcome, result_text
from tabhelm.locking.tab_locks import TabLocks
from tabhelm.messages import FlightEnd, encode
from tabhelm.tasks import Tasks

T = TypeVar("T")
LINGER = 0.5
"""Seconds for which who was granted the lock waits for what the last holder may have said."""
Run = Callable[[Lock], Awaitable[str | None]]
"""Does it, under the lock; gives JSON text."""


class SingleFlights:
    """One for all tabs of an engine: brings outcomes to those who wait."""

    def __init__(self, hub: LockHub) -> None:
        self.hub = hub
        self._waiting: dict[str, dict[asyncio.Future[Outcome | None], None]] = {}

    def wait(self, name: str) -> asyncio.Future[Outcome | None]:
        """What the next flight of this name gives; call ``forget`` afterwards."""
        future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, {})[future] = None
        return future

    def forget(self, name: str, future: asyncio.Future[Outcome | None]) -> None:
        """Nobody waits any more."""
        waiting = self._waiting.get(name, {})
        waiting.pop(future, None)
        if not waiting:
            self._waiting.pop(name, None)

    def ended(self, name: str, outcome: Outcome) -> None:
        """A tab of ours has done it, and still holds the lock."""
        self._tell(name, outcome)
        # Also when no other engine is known: one may have come this very moment, and wait for it.
        self.hub.post(encode(FlightEnd(self.hub.engine_id, name, **asdict(outcome))))

    def heard(self, end: FlightEnd) -> None:
        """A tab of another engine has done it."""
        if end.sender != self.hub.engine_id:
            self._tell(end.name, Outcome(end.value, end.error, end.reason, end.code))

    def _tell(self, name: str, outcome: Outcome) -> None:
        for future in self._waiting.get(name, {}):
            if not future.done():
                future.set_result(outcome)


async def fly(flights: SingleFlights, locks: TabLocks, name: str, run: Run, *, again: bool = True) -> Outcome:
    """Do it, or get what the tab gives that does it. ``again`` as in ``TabLocks.acquire``.

    Raises:
        LockLost: we did it, and lost the lock meanwhile; somebody else does it again.
        Exception: whatever ``run`` raised, if we did it (the others get it as ``FlightFailed``).
    """
    while True:
        try:
            lock = await locks.acquire(name, if_available=True, again=again)
        except LockUnavailable:
            answer = await _follow(flights, locks, name, again)
            if isinstance(answer, Outcome):
                return answer
            lock = answer
        if lock.held:  # else it was lost while we listened
            return await _lead(flights, lock, name, run)


async def _lead(flights: SingleFlights, lock: Lock, name: str, run: Run) -> Outcome:
    holding = Holding(lock)
    outcome = None
    failure: BaseException | None = None
    try:
        outcome = Outcome(await run(lock))
        return outcome
    except Exception as error:
        failure = error
        outcome = Outcome.of_error(error)
        raise
    except BaseException as error:
        failure = error
        raise
    finally:
        # Said before the lock is let go, and only by who holds it: a thawed tab has nothing to say any more.
        if outcome is not None and lock.held:
            flights.ended(name, outcome)
        holding.over(failure)


async def _follow(flights: SingleFlights, locks: TabLocks, name: str, again: bool) -> Outcome | Lock:
    """Somebody does it: what it gave, or the lock if it gave nothing."""
    answer = flights.wait(name)
    elsewhere = not flights.hub.held(name)
    interruption = Interruption()
    answer.add_done_callback(lambda _: interruption.end("answered"))
    try:
        try:
            lock = await locks.acquire(name, again=again)
        except asyncio.CancelledError:
            if not interruption.caught():
                raise
            outcome = answer.result()
            assert outcome is not None, "only while it lingers is nothing an answer"
            return outcome
        finally:
            interruption.close()
        try:
            heard = await _linger(flights, answer, elsewhere)
        except BaseException:
            lock.release()
            raise
        if heard is None:
            return lock
        lock.release()
        return heard
    finally:
        flights.forget(name, answer)


async def _linger(flights: SingleFlights, answer: asyncio.Future[Outcome | None], elsewhere: bool) -> Outcome | None:
    if answer.done() or not (elsewhere or flights.hub.others()):
        return answer.result() if answer.done() else None

    def enough() -> None:
        if not answer.done():
            answer.set_result(None)

    timer = flights.hub.clock.call_later(LINGER, enough)
    try:
        return await answer
    finally:
        timer.cancel()


@dataclass(eq=False)
class _Shared(Generic[T]):
    """One flight of one tab, for all of its callers."""

    task: asyncio.Task[T]
    callers: dict[asyncio.Future[T], None]


class TabFlights:
    """The single flights of one tab. Its own callers share one: the same value, or the same error."""

    def __init__(self, flights: SingleFlights, locks: TabLocks, tasks: Tasks) -> None:
        self._flights = flights
        self._locks = locks
        self._tasks = tasks
        self._running: dict[str, _Shared[Any]] = {}

    async def join(
        self, key: str, work: Callable[[], Awaitable[T]], *, scope: str | None = None, timeout: float | None = None
    ) -> T:
        """See ``Tab.single_flight``."""
        hub = self._flights.hub
        name = lock_name(hub.app, hub.protocol, "single-flight", key, scope)
        if timeout is not None and not 0 < timeout < 2**31:
            raise ValueError(f"timeout {timeout!r} of single flight {key!r} is not valid: seconds, above 0, or None")
        shared = self._running.get(name)
        if shared is None or shared.task.done():
            task = self._tasks.start(self._fly(name, key, work), f"single flight {key}", supervised=False)
            shared = self._running[name] = _Shared(task, {})
            task.add_done_callback(lambda _, ended=shared: self._ended(name, ended))  # type: ignore[misc]
        caller: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        shared.callers[caller] = None
        timer = None if timeout is None else hub.clock.call_later(timeout, lambda: self._too_late(caller, key, timeout))
        try:
            return await caller
        finally:
            if timer is not None:
                timer.cancel()
            shared.callers.pop(caller, None)
            if not shared.callers and not shared.task.done():
                shared.task.cancel()  # nobody wants it any more
                if self._running.get(name) is shared:
                    del self._running[name]

    async def _fly(self, name: str, key: str, work: Callable[[], Awaitable[T]]) -> T:
        own: list[T] = []

        async def run(lock: Lock) -> str:
            value = await work()
            text = result_text(value, key)
            own.append(value)
            return text

        outcome = await fly(self._flights, self._locks, name, run)
        return own[0] if own else outcome.get(key)

    def _ended(self, name: str, shared: _Shared[Any]) -> None:
        if self._running.get(name) is shared:
            del self._running[name]
        task = shared.task
        error = None if task.cancelled() else task.exception()
        for caller in shared.callers:
            if caller.done():
                continue
            if task.cancelled():
                caller.cancel()
            elif error is not None:
                caller.set_exception(error)
            else:
                caller.set_result(task.result())

    @staticmethod
    def _too_late(caller: asyncio.Future[Any], key: str, timeout: float) -> None:
        if not caller.done():
            caller.set_exception(LockTimeout(f"single flight {key!r} gave nothing within {timeout:g} s", name=key))
