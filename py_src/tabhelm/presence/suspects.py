"""Free what a page keeps in the back/forward cache: once its beats are missed, look up the locks.

An engine that is suspended with its last page before it read that page's goodbye (a machine that is too busy) goes on
holding its leaders' locks, and their standbys wait. Browsers put a page out of the cache, and its locks with it, when
others look up the locks (``query()``), as when they ask for one. It evicts every cached page that holds some: so it is
never done on a beat, but once for each leader that fell silent.
"""

from __future__ import annotations

from tabhelm.errors import NoAuthority
from tabhelm.ports import Clock, Locks
from tabhelm.presence.roster import Roster
from tabhelm.tasks import Tasks


class Suspects:
    """Looks once at each silence of an engine that leads what one of our own tabs stands for."""

    def __init__(self, roster: Roster, locks: Locks, clock: Clock, tasks: Tasks) -> None:
        self._roster = roster
        self._locks = locks
        self._clock = clock
        self._tasks = tasks
        self._looked: dict[str, int] = {}
        """Engines, and the last beacon heard before we looked: a later one begins another silence."""
        roster.subscribe(self._review)

    def _review(self) -> None:
        now = self._clock.monotonic()
        wanted = {resource for note in self._roster.own_tabs() for resource in note.stands}
        silent = {
            engine_id: self._roster.number(engine_id)
            for engine_id, led in self._roster.silent(now).items()
            if led & wanted
        }
        fresh = {engine_id for engine_id, number in silent.items() if self._looked.get(engine_id) != number}
        self._looked = silent
        if fresh:
            self._tasks.start(self._look(), "look up the locks of a silent leader")

    async def _look(self) -> None:
        try:
            await self._locks.query()
        except NoAuthority:
            return  # where there are no locks, none is kept
