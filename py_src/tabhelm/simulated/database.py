"""IndexedDB as an agent has it: opening, losing and closing a database, transactions in it.

What the browser keeps of it is in ``disk``: it goes on when the agent dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tabhelm.errors import DatabaseBlocked, DatabaseClosed, DatabaseDenied, DatabaseError, DatabaseNewer
from tabhelm.ports.database import DatabaseEvent, Durability, Schema, Transaction, TransactionMode
from tabhelm.simulated.disk import POLL, Connection, Storage
from tabhelm.simulated.loop import fail, settle
from tabhelm.simulated.transaction import AgentTransaction

if TYPE_CHECKING:
    from tabhelm.simulated.world import Pipe, SimulatedAgent

T = TypeVar("T")
Answer = Callable[[Connection | Exception], None]
OPEN_BOUND = 10.0
"""Seconds that a caller waits for an open."""
LONGEST_PAUSE = 320.0
"""Seconds between two requests of one attempt to open; they double."""


@dataclass(slots=True)
class _Opening:
    """A running attempt to open, for all who wait."""

    ask_after: float
    pause: float = OPEN_BOUND
    told: bool = False
    """Whether it was said that the database is blocked."""


class SimulatedDatabase:
    """The port's database in one agent."""

    def __init__(self, storage: Storage, agent: SimulatedAgent, name: str, schema: Schema, number: int) -> None:
        world = storage.world
        self.storage = storage
        self.agent = agent
        self.schema = schema
        self.to_browser: Pipe = world.pipe(f"db-out:{agent.name}:{number}", lambda: world.faults.database_delay)
        self.to_agent: Pipe = world.pipe(f"db-in:{agent.name}:{number}", lambda: world.faults.database_delay)
        self._name = name
        self._callbacks: list[Callable[[DatabaseEvent], None]] = []
        self._connection: Connection | None = None
        self._opening: _Opening | None = None
        self._waiters: list[asyncio.Future[Connection]] = []
        self._closed = False
        self._mine: list[AgentTransaction] = []
        agent.on_death.append(self._bury)

    @property
    def name(self) -> str:
        return self._name

    async def transaction(
        self,
        stores: Sequence[str],
        mode: TransactionMode,
        body: Callable[[Transaction], Coroutine[Any, Any, T]],
        *,
        durability: Durability = "strict",
    ) -> T:
        connection = await self._connect()
        for store in stores:
            if store not in connection.stored.stores:
                raise DatabaseError(f"database {self._name!r} has no store {store!r}")
        transaction = AgentTransaction(self, connection.stored, tuple(stores), mode, durability)
        self._mine.append(transaction)
        try:
            result: T = await transaction.run(body)
            return result
        finally:
            if transaction in self._mine:
                self._mine.remove(transaction)

    def subscribe(self, callback: Callable[[DatabaseEvent], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for transaction in self._mine[:]:
            transaction.cut_off(DatabaseClosed(f"database {self._name!r} was closed by its owner"))

    def on_lost(self, connection: Connection, event: DatabaseEvent) -> None:
        """The browser tells of a connection that is gone, or must go (``versionchange``)."""
        connection.close()
        if self._connection is connection:
            self._connection = None
            self._tell(event)

    async def _connect(self) -> Connection:
        if self._closed:
            raise DatabaseClosed(f"database {self._name!r} was closed by its owner")
        open_one = self._connection if self._connection is not None and self._connection.open else None
        if open_one is not None and not self._waiters:
            return open_one
        # In line behind those who wait or have not woken yet: transactions begin in the order of the calls.
        waiter: asyncio.Future[Connection] = self.agent.loop.create_future()
        self._waiters.append(waiter)
        if open_one is not None:
            self.agent.post(settle, waiter, open_one)
        else:
            self._opening = self._opening or _Opening(self.agent.clock.monotonic())
            self._open(self._opening)
        timer = self.agent.clock.call_later(OPEN_BOUND, lambda: self._expired(waiter))
        try:
            return await waiter  # one open for all who wait: a cancelled one leaves it to the others
        finally:
            timer.cancel()
            self._waiters.remove(waiter)

    def _expired(self, waiter: asyncio.Future[Connection]) -> None:
        if self._opening is not None and not waiter.done():
            self._tell_blocked(self._opening)
            fail(waiter, DatabaseBlocked(f"database {self._name!r} did not open within {OPEN_BOUND:g} s"))

    def _tell_blocked(self, opening: _Opening) -> None:
        if not opening.told:
            opening.told = True
            self._tell("blocked")

    def _open(self, opening: _Opening) -> None:
        """Ask the browser, unless it was asked a short while ago; any answer to this attempt will do."""

        def end(result: Connection | Exception) -> None:
            if self._opening is not opening:
                if isinstance(result, Connection):
                    result.close()
                return
            self._opening = None
            if isinstance(result, Connection) and self._closed:
                result.close()
                result = DatabaseClosed(f"database {self._name!r} was closed by its owner")
            if isinstance(result, Connection):
                self._connection = result
                self._tell("opened")
            for waiter in self._waiters:
                if isinstance(result, Exception):
                    fail(waiter, result)
                else:
                    settle(waiter, result)

        now = self.agent.clock.monotonic()
        if now < opening.ask_after:
            return
        opening.ask_after, opening.pause = now + opening.pause, min(2 * opening.pause, LONGEST_PAUSE)
        answer: Answer = lambda result: self.to_agent.send(self.agent.post, end, result)  # noqa: E731
        self.to_browser.send(self._open_in_browser, opening, answer)

    def _open_in_browser(self, opening: _Opening, answer: Answer) -> None:
        faults, world = self.storage.world.faults, self.storage.world
        if not self.agent.alive or faults.storage_hangs or self._opening is not opening:
            return
        if faults.storage_denied:
            answer(DatabaseDenied(f"database {self._name!r}: this context may not use IndexedDB"))
            return
        stored = self.storage.stored(self._name)
        if stored.changing or (stored.version < self.schema.version and stored.connections):
            if not stored.changing:  # ours is the upgrade
                for other in stored.connections:
                    if not other.told:
                        other.told = True
                        other.give_way()
                    elif not opening.told:
                        self.to_agent.send(self.agent.post, self._tell_blocked, opening)
            world.loop.call_later(POLL, self._open_in_browser, opening, answer, context=world.loop.root.context())
        elif stored.version > self.schema.version:
            text = (
                f"database {self._name!r} has version {stored.version}, newer than the {self.schema.version} asked for"
            )
            answer(DatabaseNewer(text))
        else:
            if stored.version < self.schema.version:
                stored.upgrade(self.schema)
            answer(Connection(self, stored))

    def _tell(self, event: DatabaseEvent) -> None:
        self.storage.world.note(self.agent.name, f"database {self._name} {event}")
        for callback in self._callbacks:
            self.agent.post(callback, event)

    def _bury(self) -> None:
        """The agent died: a commit on its way happens or not, all else is undone."""
        for stored in list(self.storage.databases.values()):
            for connection in stored.connections[:]:
                if isinstance(connection, Connection) and connection.database is self:
                    connection.close()
        for transaction in self._mine:
            transaction.orphaned()


class SimulatedDatabases:
    """The port of one agent."""

    def __init__(self, storage: Storage, agent: SimulatedAgent) -> None:
        self._storage = storage
        self._agent = agent
        self._made = 0

    def database(self, name: str, schema: Schema) -> SimulatedDatabase:
        self._made += 1
        return SimulatedDatabase(self._storage, self._agent, name, schema, self._made)
