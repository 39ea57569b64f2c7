"""Know at once that another engine died: each holds a lock while it lives, and whoever is granted that lock knows.

Without it the dead would be believed for four of their beats, and who trusts a dead leader and a dead standby does not
ask. It also unmasks beacons of a sender that is no engine: nobody holds its lock.
"""

from __future__ import annotations

import asyncio

from tabhelm.errors import InvalidName, LockWithdrawn, NoAuthority
from tabhelm.names import engine_lock
from tabhelm.ports import Locks
from tabhelm.presence.roster import Roster
from tabhelm.tasks import Tasks

MOST = 64
"""So many engines are watched at a time; of more, the beats alone tell. Strangers shall not make us ask without end."""


class EngineWatch:
    """Takes engines that died out of the roster."""

    def __init__(self, roster: Roster, locks: Locks, tasks: Tasks, app: str, protocol: int) -> None:
        self._roster = roster
        self._locks = locks
        self._tasks = tasks
        self._app = app
        self._protocol = protocol
        self._watched: dict[str, asyncio.Task[None]] = {}

    def met(self, engine_id: str) -> None:
        """An engine that we did not know has spoken."""
        if engine_id not in self._watched and len(self._watched) < MOST:
            self._watched[engine_id] = self._tasks.start(self._outlive(engine_id), "watch engine")

    def suspend(self) -> None:
        """Watch nobody, until somebody is met again."""
        watches, self._watched = self._watched, {}
        for watch in watches.values():
            watch.cancel()

    async def _outlive(self, engine_id: str) -> None:
        try:
            lock = await self._locks.acquire(engine_lock(self._app, self._protocol, engine_id), mode="shared")
        except (LockWithdrawn, NoAuthority):
            return  # we ourselves are ending
        except InvalidName:
            lock = None  # no engine has such a name
        finally:
            if self._watched.get(engine_id) is asyncio.current_task():
                del self._watched[engine_id]
        if lock is not None:
            lock.release()
        self._roster.forget(engine_id)
