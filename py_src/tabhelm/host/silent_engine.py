"""An engine that hangs for good keeps its own lock and those of the leaders that it served.

Its pages leave it after ``stall_after`` and tell the engine that they join. That one need not wait as long as for a
silence that might be its own deafness: it asks the other to speak, listens for a moment, and looks up once who holds
what. Whatever one of our standbys waits for, and the silent engine holds, is taken over at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tabhelm.errors import InvalidName, NoAuthority
from tabhelm.leadership import Election, Waiting
from tabhelm.messages import Ask, encode
from tabhelm.names import LockName, engine_lock
from tabhelm.ports import LockSnapshot
from tabhelm.presence.signs import TICK
from tabhelm.services import Services

LISTEN = 1.0
"""Seconds that an engine which was asked to speak has for that: it answers within ``GREETING``."""


class SilentEngines:
    """Finds out whether an engine hangs. ``elections``: those of all our tabs."""

    def __init__(self, services: Services, elections: Callable[[], Iterable[Election]]) -> None:
        self._services = services
        self._elections = elections
        self._suspects: dict[str, float] = {}
        """Who is being listened for, and for how long it is said to have been silent."""

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
            try:
                seen = await self._services.ports.locks.query()
            except NoAuthority:
                return
        finally:
            silent_for = self._suspects.pop(engine_id)
        for held in _held_with(lock, seen):
            self._claim(held, silent_for)

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
    try:
        return LockName.parse(name).kind == "leader"
    except InvalidName:
        return False  # another library's lock
