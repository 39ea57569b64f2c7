"""Know at once that another engine died: each holds a lock while it lives, and whoever is granted that lock knows.

Without it the dead would be believed for four of their beats, and who trusts a dead leader and a dead standby does not
ask. It also unmasks beacons of a sender that is no engine: nobody holds its lock.

Every watch is a pending lock request. If each of n engines watched all others, fifty pages that each run their own
would keep 2,450 requests pending. What must be known at once is whether the leaders live and those first in line after
them; those are watched always, and while engines are few, so are all others (their dead tabs vanish at once from the
roster, not after some beats). So each engine watches a bounded number, and all together O(n).
"""

from __future__ import annotations

import asyncio

from tabhelm.errors import InvalidName, LockWithdrawn, NoAuthority
from tabhelm.names import engine_lock
from tabhelm.ports import Clock, Locks
from tabhelm.presence.roster import Roster
from tabhelm.tasks import Tasks

FEW = 6
"""So many engines are all watched; of more, only those that matter."""
MOST = 64
"""So many are watched in all; of more, the beats alone tell. Strangers shall not make us ask without end."""


class EngineWatch:
    """Takes engines that died out of the roster."""

    def __init__(self, roster: Roster, locks: Locks, clock: Clock, tasks: Tasks, app: str, protocol: int) -> None:
        self._roster = roster
        self._locks = locks
        self._clock = clock
        self._tasks = tasks
        self._app = app
        self._protocol = protocol
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._first: dict[object, str] = {}
        """Whose tab is first in line, as each of our elections sees it."""
        self._denied = False
        """This context can have no locks. It would only ask in vain."""
        roster.subscribe(self._review)

    def first_in_line(self, election: object, engine_id: str | None) -> None:
        """This engine has the best candidate that does not lead; ``None``: nobody has, or the election is over."""
        if engine_id == self._roster.engine_id:
            engine_id = None
        if self._first.get(election) != engine_id:
            if engine_id is None:
                del self._first[election]
            else:
                self._first[election] = engine_id
            self._review()

    def suspend(self) -> None:
        """Watch nobody, until somebody is met again."""
        self._denied = False
        for engine_id in list(self._watched):
            self._stop(engine_id)

    def _review(self) -> None:
        if self._denied:
            return
        known = self._roster.engines()
        needed = {engine_id for engine_id, leads in known.items() if leads} | set(self._first.values())
        wanted = [engine_id for engine_id in known if engine_id in needed][:MOST]
        # Whom we watch already goes first: nobody is exchanged without need.
        others = [engine_id for engine_id in self._watched if engine_id in known and engine_id not in needed]
        others += [engine_id for engine_id in known if engine_id not in needed and engine_id not in self._watched]
        wanted += others[: max(0, FEW - len(wanted))]
        for engine_id in self._watched.keys() - set(wanted):
            self._stop(engine_id)
        for engine_id in wanted:
            if engine_id not in self._watched:
                self._watched[engine_id] = self._tasks.start(self._outlive(engine_id), "watch engine")

    def _stop(self, engine_id: str) -> None:
        self._watched.pop(engine_id).cancel()

    async def _outlive(self, engine_id: str) -> None:
        try:
            lock = await self._locks.acquire(engine_lock(self._app, self._protocol, engine_id), mode="shared")
        except LockWithdrawn:
            return  # we ourselves are ending
        except NoAuthority:
            self._denied = True
            return
        except InvalidName:
            lock = None  # no engine has such a name
        finally:
            if self._watched.get(engine_id) is asyncio.current_task():
                del self._watched[engine_id]
        if lock is not None:
            lock.release()
        self._roster.forget(engine_id, self._clock.monotonic())
