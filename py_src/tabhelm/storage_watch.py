"""Is the database still the one that it was? Deleted, cleared by the user or evicted by the browser, it opens again
empty, and nothing about it says so: every database carries an id of its own, drawn when somebody first looked.

Whoever loses its connection looks: opens anew, and compares. Leaders whose epochs are gone step down and go on above
what living engines remember; what the queues had acknowledged is reported.
"""

from __future__ import annotations

import asyncio

from tabhelm.errors import DatabaseClosed, DatabaseError, DatabaseNewer
from tabhelm.fencing.schema import FENCING
from tabhelm.listeners import Listeners
from tabhelm.observe import Events, StorageChanged
from tabhelm.ports import Database, Entropy, Transaction
from tabhelm.ports.database import DatabaseEvent
from tabhelm.tasks import Tasks

IDENTITY = "database"
"""Key of the record ``{key, id}`` in the store ``fencing``."""
WIPED = "storage-wiped"
UPGRADED = "versionchange"
NEWER = "database-newer"
_ATTEMPTS = 5
"""Looks in a row at a database that is closed again and again while it is looked at."""


class StorageWatch:
    """The database of one engine.

    ``lost`` tells leaders one word why their epochs can no longer be relied on; ``wiped`` is told when the database is
    another one than before.
    """

    def __init__(self, database: Database, entropy: Entropy, tasks: Tasks, events: Events) -> None:
        self._database = database
        self._entropy = entropy
        self._tasks = tasks
        self._events = events
        self._id: str | None = None
        self._newer = False
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self.lost: Listeners[[str]] = Listeners("leaders of an engine", events.failed)
        self.wiped: Listeners[[]] = Listeners("queues of an engine", events.failed)
        database.subscribe(self._changed)

    def look(self) -> None:
        """Find out whether the database is still the same; at once, or after the look that is under way."""
        self._again = True
        if self._looking is None:
            self._looking = self._tasks.start(self._look(), "look at the database")
            self._looking.add_done_callback(self._looked)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if self._again and not task.cancelled():
            self.look()  # told between its last look and now

    def _changed(self, change: DatabaseEvent) -> None:
        self._events.emit(StorageChanged(self._database.name, change))
        if change == "versionchange":
            # Somebody upgrades the database or deletes it: from now on no epoch of ours can be checked.
            self.lost.tell(UPGRADED)
        if change != "blocked":
            self.look()

    async def _look(self) -> None:
        attempts = 0
        while self._again:
            self._again = False
            try:
                found = await self._identify()
            except DatabaseClosed:
                attempts += 1
                self._again = attempts < _ATTEMPTS
            except DatabaseNewer:
                self._is_newer()
            except DatabaseError:
                pass  # denied, blocked, hanging: it is looked at again once it opens
            else:
                self._newer = False
                known, self._id = self._id, found
                if known is not None and known != found:
                    self._events.emit(StorageChanged(self._database.name, "wiped"))
                    self.lost.tell(WIPED)
                    self.wiped.tell()

    def _is_newer(self) -> None:
        if not self._newer:
            self._newer = True
            self._events.emit(StorageChanged(self._database.name, "newer"))
            self.lost.tell(NEWER)

    async def _identify(self) -> str:
        async def read(tx: Transaction) -> str | None:
            record = await tx.get(FENCING, IDENTITY)
            return None if record is None else str(record["id"])

        async def draw(tx: Transaction) -> str:
            known = await read(tx)
            if known is not None:
                return known
            drawn = self._entropy.token_bytes(16).hex()
            await tx.put(FENCING, {"key": IDENTITY, "id": drawn})
            return drawn

        found = await self._database.transaction([FENCING], "readonly", read)
        if found is not None:
            return found
        # Relaxed: a power cut that forgets it ends all that remember it.
        return await self._database.transaction([FENCING], "readwrite", draw, durability="relaxed")
