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

from tabhelm.errors import LockReentered, LockTimeout, LockUnavailable
from tabhelm.locking.hub import LockHub
from tabhelm.locking.interruption import Interruption
from tabhelm.locking.lock import Holding, Lock, lock_name
from tabhelm.locking.outcome import Outcome, result_text
from tabhelm.locking.tab_locks import TabLocks
from tabhelm.messages import FlightEnd, encode
from tabhelm.ports import Clock
from tabhelm.tasks import Tasks

T = TypeVar("T")
LINGER = 0.5
"""Seconds for which who was granted the lock waits for what the last holder may have said."""
Run = Callable[[Lock], Awaitable[str | None]]
"""Does it, under the lock; gives JSON text."""


class Listening:
    """One that asked for a flight: what it heard since. Make it before the lock is asked for: the result may come while
    the browser's word that somebody holds the lock is still on its way."""

    def __init__(self, clock: Clock) -> None:
        self.future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        """The answer; ``None`` if there is none."""
        self._clock = clock
        self._taken = False
        self._early: tuple[Outcome, float] | None = None

    def tell(self, outcome: Outcome) -> None:
        """It is done, and was not yet when this one asked."""
        if not self.future.done():
            self.future.set_result(outcome)

    def hear(self, outcome: Outcome) -> None:
        """Another engine says so. As long as we do not know that somebody holds the lock, that may be a flight that was
        over before we asked, with another one under way by now."""
        if self._taken:
            self.tell(outcome)
        else:
            self._early = (outcome, self._clock.monotonic())

    def taken(self) -> None:
        """Somebody holds the lock: what is heard from now on is the answer."""
        self._taken = True

    @property
    def early(self) -> Outcome | None:
        """What was heard before, once we are granted the lock: that of its last holder, if it was not long ago."""
        if self._early is None or self._clock.monotonic() - self._early[1] > LINGER:
            return None
        return self._early[0]


class SingleFlights:
    """One for all tabs of an engine: brings outcomes to those who wait."""

    def __init__(self, hub: LockHub) -> None:
        self.hub = hub
        self._listening: dict[str, dict[Listening, None]] = {}

    def listen(self, name: str) -> Listening:
        """For what the next flight of this name gives; call ``forget`` afterwards."""
        listening = Listening(self.hub.clock)
        self._listening.setdefault(name, {})[listening] = None
        return listening

    def forget(self, name: str, listening: Listening) -> None:
        """Nobody waits any more."""
        others = self._listening.get(name, {})
        others.pop(listening, None)
        if not others:
            self._listening.pop(name, None)

    def ended(self, name: str, outcome: Outcome) -> None:
        """A tab of ours has done it, and still holds the lock."""
        for listening in self._listening.get(name, {}):
            listening.tell(outcome)
        # Also when no other engine is known: one may have come this very moment, and wait for it.
        self.hub.post(encode(FlightEnd(self.hub.engine_id, name, **asdict(outcome))))

    def heard(self, end: FlightEnd) -> None:
        """A tab of another engine has done it."""
        if end.sender != self.hub.engine_id:
            for listening in self._listening.get(end.name, {}):
                listening.hear(Outcome(end.value, end.error, end.reason, end.code))


async def fly(flights: SingleFlights, locks: TabLocks, name: str, run: Run, *, again: bool = True) -> Outcome:
    """Do it, or get what the tab gives that does it. ``again`` as in ``TabLocks.acquire``.

    Raises:
        LockLost: we did it, and lost the lock meanwhile; somebody else does it again.
        Exception: whatever ``run`` raised, if we did it (the others get it as ``FlightFailed``).
    """
    while True:
        listening = flights.listen(name)
        try:
            lock = await _first_try(listening, locks, name, again)
            answer = await _follow(flights, listening, locks, name, again) if lock is None else lock
        finally:
            flights.forget(name, listening)
        if isinstance(answer, Outcome):
            return answer
        if answer.held:  # else it was lost while we listened
            return await _lead(flights, answer, name, run)


async def _first_try(listening: Listening, locks: TabLocks, name: str, again: bool) -> Lock | None:
    """The lock, unless somebody does it, or a tab of ours has done it since we asked."""
    try:
        lock = await locks.acquire(name, if_available=True, again=again)
    except LockUnavailable:
        listening.taken()
        return None
    if not listening.future.done():
        return lock
    lock.release()
    return None


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


async def _follow(
    flights: SingleFlights, listening: Listening, locks: TabLocks, name: str, again: bool
) -> Outcome | Lock:
    """Somebody does it: what it gave, or the lock if it gave nothing."""
    answer = listening.future
    if answer.done() and (outcome := answer.result()) is not None:
        return outcome
    elsewhere = not flights.hub.held(name)
    interruption = Interruption()
    answer.add_done_callback(lambda _: interruption.end("answered"))
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
        heard = await _linger(flights, listening, elsewhere)
    except BaseException:
        lock.release()
        raise
    if heard is None:
        return lock
    lock.release()
    return heard


async def _linger(flights: SingleFlights, listening: Listening, elsewhere: bool) -> Outcome | None:
    answer = listening.future
    if answer.done():
        return answer.result()
    if listening.early is not None or not (elsewhere or flights.hub.others()):
        return listening.early

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
    lock: Lock | None = None
    """Under which it is done here."""

    @property
    def over(self) -> bool:
        """Whether it can give nothing any more. Work that was lost may go on, deaf to its cancellation."""
        return self.task.done() or (self.lock is not None and self.lock.lost is not None)


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
        if shared is not None and shared.task is asyncio.current_task():
            raise LockReentered(f"single flight {key!r} is asked for by its own work: it would wait for ever")
        if shared is None or shared.over:
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
            shared = self._running.get(name)
            if shared is not None and shared.task is lock.task:
                shared.lock = lock
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
