"""An engine that hangs for good keeps its own lock and those of the leaders that it served.

Its pages leave it after ``stall_after`` and tell the engine that they join. That one need not wait as long as for a
silence that might be its own deafness: it asks the other to speak, listens for a moment, and looks up once who holds
what. Whatever one of our standbys waits for, and the silent engine holds, is taken over at once.

Locks of the app's own and single flights have no fence, so those are taken only when nobody can believe in them any
more: the engine is a shared one, and all its pages have left it (each doubts its locks before it leaves).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tabhelm.errors import InvalidName, LockWithdrawn, NoAuthority
from tabhelm.leadership import Election, Waiting
from tabhelm.messages import Ask, encode
from tabhelm.names import Kind, LockName, engine_lock
from tabhelm.ports import LockInfo, LockSnapshot
from tabhelm.presence.signs import TICK
from tabhelm.services import Services

LISTEN = 1.0
"""Seconds that an engine which was asked to speak has for that: it answers within ``GREETING``."""
AGAIN = 5.0
"""Seconds between two looks at what an engine keeps that still has pages: one may be frozen, or die without a word."""


class SilentEngines:
    """Finds out whether an engine hangs. ``elections``: those of all our tabs."""

    def __init__(self, services: Services, elections: Callable[[], Iterable[Election]]) -> None:
        self._services = services
        self._elections = elections
        self._suspects: dict[str, float] = {}
        """Who is being listened for, and for how long it is said to have been silent."""
        self._later: set[str] = set()
        """Who will be looked at again."""

    def told(self, engine_id: str, silent_for: float) -> None:
        """A page left this engine, which had said nothing for ``silent_for`` seconds."""
        if engine_id == self._services.engine_id:
            return
        try:
            lock = engine_lock(self._services.app, self._services.protocol, engine_id)
        except InvalidName:
            self._services.events.ignored("silent-engine")
            return
        if engine_id not in self._suspects:
            self._suspects[engine_id] = silent_for
            self._services.tasks.start(self._judge(engine_id, lock), "judge silent engine")

    async def _judge(self, engine_id: str, lock: str) -> None:
        try:
            if await self._speaks(engine_id):
                return
        finally:
            silent_for = self._suspects.pop(engine_id)
        try:
            seen = await self._services.ports.locks.query()
            for held in _held_with(lock, seen):
                self._claim(held, silent_for)
            all_taken = await self._take(engine_id, lock)
        except (NoAuthority, LockWithdrawn, InvalidName):
            return
        if all_taken or engine_id in self._later:
            return
        self._later.add(engine_id)
        try:
            await self._services.ports.clock.sleep(AGAIN)
        finally:
            self._later.discard(engine_id)
        self.told(engine_id, silent_for + LISTEN + AGAIN)

    async def _take(self, engine_id: str, lock: str) -> bool:
        """Let go, in its stead, of what nobody uses any more. Whether it can hold nothing of that kind later.

        One engine at a time: what two had seen it hold, the second would take from whom the first gave it to.
        """
        locks = self._services.ports.locks
        app, protocol = self._services.app, self._services.protocol
        turn = await locks.acquire(str(LockName(app, protocol, "engine", "judge", engine_id)))
        try:
            while True:
                estate = _Estate(f"{app}:v{protocol}:", lock, await locks.query())
                if estate.closed:
                    return True
                if not estate.left or not estate.free:
                    return False
                for name in estate.free:  # what it still waits for, it is granted next: hence the loop
                    if (taken := await locks.acquire(name, steal=True)) is not None:
                        taken.release()
        finally:
            if turn is not None:
                turn.release()

    async def _speaks(self, engine_id: str) -> bool:
        """Whether it says anything. Time in which we ourselves stood still does not count."""
        clock = self._services.ports.clock
        number = self._services.roster.number(engine_id)
        slept = True
        while slept:
            begun = clock.monotonic()
            self._services.channel.post(encode(Ask(self._services.engine_id, engine_id)))
            await clock.sleep(LISTEN)
            slept = clock.monotonic() - begun > LISTEN + TICK
        return self._services.roster.number(engine_id) != number

    def _claim(self, lock: str, silent_for: float) -> None:
        """The best placed of our standbys takes it over."""
        waiting = [
            (election.status.rank, at, election)
            for at, election in enumerate(self._elections())
            if isinstance(election.status, Waiting) and election.resource.lock(self._services.protocol) == lock
        ]
        for _, _, election in sorted(waiting):
            if election.claim(silent_for):
                return


def _held_with(lock: str, seen: LockSnapshot) -> list[str]:
    """The leader locks that are held by whoever holds ``lock``."""
    clients = {info.client_id for info in seen.held if info.name == lock}
    return [info.name for info in seen.held if info.client_id in clients and _is_leader(info.name)]


def _is_leader(name: str) -> bool:
    return _kind(name) == "leader"


def _kind(name: str) -> Kind | None:
    try:
        return LockName.parse(name).kind
    except InvalidName:
        return None  # another library's lock


class _Estate:
    """What an engine has of the locks whose names begin with ``prefix``; ``lock`` is its own."""

    def __init__(self, prefix: str, lock: str, seen: LockSnapshot) -> None:
        engine = {info.client_id for info in seen.held if info.name == lock}

        def names(infos: tuple[LockInfo, ...], *kinds: Kind) -> set[str]:
            its = (info.name for info in infos if info.client_id in engine and info.name.startswith(prefix))
            return {name for name in its if _kind(name) in kinds}

        kept = names(seen.held, "mutation", "single-flight")
        shared = {info.name for info in seen.held if info.client_id not in engine}
        in_page = bool(names(seen.held, "tab"))
        self.closed = in_page or not (kept or names(seen.pending, "mutation", "single-flight"))
        """There is nothing to take: it has ended, has no such locks, or lives in a page, whose bodies may go on."""
        self.left = bool(names(seen.held, "lifeline")) and not names(seen.pending, "lifeline")
        """Whether all its pages have left. It waits for each one's lifeline, and is granted it then."""
        self.free = sorted(kept - shared)
        """What it holds alone."""
