"""Who led what, when, and why it ended: a bounded log in a database, which outlives tabs and engines.

It is written after the fact and as well as it goes. Nothing waits for it: it lies in a database of its own, because a
page that is frozen in the midst of a transaction keeps everybody else out of the stores that this touches. A database
that is full, hangs or was wiped costs entries, never an election. A leader whose engine died leaves an entry without an
end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tabhelm.errors import DatabaseBlocked, TabhelmError
from tabhelm.observe.events import EpochIssued, Event, Events, LeadershipChanged
from tabhelm.ports import Clock, Database, Timer, Transaction
from tabhelm.ports.database import Schema, Store
from tabhelm.tasks import Tasks, within

KEEP = 200
"""So many entries are kept, of all resources together."""
DELAY = 1.0
"""Seconds after a change, in which further ones join it."""
LIMIT = 10.0
"""Seconds that a transaction may take."""
_LOST = "unknown"
REIGNS = "reigns"
HISTORY_SCHEMA = Schema(version=1, stores=(Store(REIGNS, key_path="number", auto_increment=True),))
"""Records only ever gain fields."""


@dataclass(frozen=True, slots=True)
class Reign:
    """One time of leadership. ``began`` and ``ended`` are Unix time in seconds, by the wall clock."""

    resource: str
    """The token resource."""
    epoch: int | None
    tab_id: str
    engine_id: str
    version: str
    """Of the app, as the tab said."""
    authority: str
    began: float
    ended: float | None
    """``None``: it still leads, or its engine died before it could write down the end."""
    reason: str | None
    """Why it ended; ``unknown`` where a later leader is known and nobody wrote it down."""


@dataclass(slots=True, eq=False)
class _Entry:
    reign: Reign
    number: int | None = None
    """Under which it is stored; ``None`` until then."""


class History:
    """Listens to the events of one engine. ``version_of`` finds a tab's version."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        tasks: Tasks,
        events: Events,
        engine_id: str,
        version_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._database = database
        self._clock = clock
        self._tasks = tasks
        self._engine_id = engine_id
        self._version_of = version_of
        self._authorities: dict[str, str] = {}
        self._open: dict[tuple[str, str], _Entry] = {}
        self._pending: deque[_Entry] = deque(maxlen=KEEP)
        self._timer: Timer | None = None
        self._suspended = False
        self._writing = asyncio.Lock()
        self.failures = 0
        """How often it could not be written."""
        events.subscribe(self._happened)

    async def read(self, count: int = KEEP) -> list[Reign]:
        """The last ``count`` entries of all tabs and engines, newest first.

        Raises:
            DatabaseError: the store could not be read (``DatabaseBlocked``: not within ``LIMIT``).
        """

        async def body(tx: Transaction) -> list[dict[str, Any]]:
            return await tx.get_all(REIGNS)

        await self.write()
        reading = self._database.transaction([REIGNS], "readonly", body)
        try:
            records = await within(self._clock, LIMIT, reading)
        except TimeoutError:
            raise DatabaseBlocked(f"the history of {self._database.name!r} was not read within {LIMIT:g} s") from None
        found = [reign for record in records if (reign := _reign(record)) is not None]
        found += [entry.reign for entry in self._pending if entry.number is None]
        found.sort(key=lambda reign: (reign.began, reign.epoch or 0), reverse=True)
        return _ended(found)[: max(0, count)]

    async def write(self) -> None:
        """Write down now what is not yet. Raises nothing of the database's: it is tried again at the next change."""
        self._cancel()
        async with self._writing:  # an entry has its number only once its first transaction is over
            if not self._pending or self._suspended:
                return
            entries = list(self._pending)
            self._pending.clear()
            written = False
            try:
                await within(self._clock, LIMIT, self._store(entries))
                written = True
            except (TabhelmError, TimeoutError):
                self.failures += 1
            finally:
                if not written:  # also when whoever asked would not wait so long
                    self._pending.extendleft(reversed([entry for entry in entries if entry not in self._pending]))

    def suspend(self) -> None:
        """Write nothing until ``resume``: the page may be in the back/forward cache."""
        self._suspended = True
        self._cancel()

    def resume(self) -> None:
        self._suspended = False
        if self._pending:
            self._soon()

    async def close(self) -> None:
        """Write down the rest, if that takes no longer than ``DELAY``, and end."""
        try:
            await within(self._clock, DELAY, self.write())
        except TimeoutError:
            pass
        finally:
            self.suspend()

    # -- listening ----------------------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        if isinstance(event, EpochIssued):
            self._authorities[event.resource] = event.authority
        elif isinstance(event, LeadershipChanged):
            if event.after == "leading":
                self._begins(event)
            elif event.before == "leading":
                self._ends(event)

    def _begins(self, event: LeadershipChanged) -> None:
        authority = self._authorities.pop(event.resource, "")
        version = self._version_of(event.tab)
        began = self._clock.wall()
        reign = Reign(event.resource, event.epoch, event.tab, self._engine_id, version, authority, began, None, None)
        entry = self._open[event.resource, event.tab] = _Entry(reign)
        self._note(entry)

    def _ends(self, event: LeadershipChanged) -> None:
        entry = self._open.pop((event.resource, event.tab), None)
        if entry is not None:
            entry.reign = replace(entry.reign, ended=self._clock.wall(), reason=event.reason)
            self._note(entry)

    def _note(self, entry: _Entry) -> None:
        if entry not in self._pending:
            self._pending.append(entry)
        self._soon()

    def _soon(self) -> None:
        if self._timer is None and not self._suspended:
            self._timer = self._clock.call_later(DELAY, self._due)

    def _due(self) -> None:
        self._timer = None
        self._tasks.start(self.write(), "history")

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- storing ------------------------------------------------------------------------------------------------------

    async def _store(self, entries: list[_Entry]) -> None:
        async def body(tx: Transaction) -> list[int | None]:
            known: list[int | None] = []
            for entry in entries:
                stored = await tx.get(REIGNS, entry.number) if entry.number is not None else None
                # Not there: storage was wiped, or it began so long ago that it is no longer kept.
                known.append(entry.number if stored is not None and _same(stored, entry.reign) else None)
            records = [_record(number, entry.reign) for number, entry in zip(known, entries, strict=True)]
            numbers = [number for number in await tx.put_all(REIGNS, records) if isinstance(number, int)]
            await tx.delete_all(REIGNS, [number - KEEP for number in numbers if number > KEEP])
            return [*numbers]

        stored = await self._database.transaction([REIGNS], "readwrite", body, durability="relaxed")
        for entry, number in zip(entries, stored, strict=True):
            entry.number = number


def _record(number: int | None, reign: Reign) -> dict[str, Any]:
    record: dict[str, Any] = {} if number is None else {"number": number}
    return record | {
        "resource": reign.resource,
        "epoch": reign.epoch,
        "tab": reign.tab_id,
        "engine": reign.engine_id,
        "version": reign.version,
        "authority": reign.authority,
        "began": reign.began,
        "ended": reign.ended,
        "reason": reign.reason,
    }


def _same(record: dict[str, Any], reign: Reign) -> bool:
    return (record.get("resource"), record.get("epoch"), record.get("tab"), record.get("began")) == (
        reign.resource,
        reign.epoch,
        reign.tab_id,
        reign.began,
    )


def _reign(record: dict[str, Any]) -> Reign | None:
    """The entry, or ``None`` if another version wrote what this one cannot read."""
    try:
        began, ended = record["began"], record["ended"]
        if not isinstance(began, (int, float)) or not isinstance(ended, (int, float, type(None))):
            return None
        return Reign(
            str(record["resource"]),
            record["epoch"],
            str(record["tab"]),
            str(record["engine"]),
            str(record["version"]),
            str(record["authority"]),
            began,
            ended,
            record["reason"],
        )
    except KeyError:
        return None


def _ended(newest_first: list[Reign]) -> list[Reign]:
    """An entry without an end that has a successor did end: nobody was left to write it down."""
    followed: set[str] = set()
    found = []
    for reign in newest_first:
        if reign.ended is None and reign.resource in followed:
            reign = replace(reign, reason=_LOST)
        followed.add(reign.resource)
        found.append(reign)
    return found
