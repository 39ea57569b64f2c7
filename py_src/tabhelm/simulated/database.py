"""IndexedDB: transactions in order, driven bodies, strict and relaxed durability, and everything that goes wrong.

Split as in a browser: ``Storage`` and ``Stored`` are the browser's process, which goes on when an agent dies;
``SimulatedDatabase`` and ``transaction.AgentTransaction`` live in the agent and stop with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tabhelm.errors import DatabaseBlocked, DatabaseClosed, DatabaseDenied, DatabaseError
from tabhelm.ports.database import DatabaseEvent, Durability, Schema, Transaction, TransactionMode
from tabhelm.simulated.loop import fail, settle
from tabhelm.simulated.records import Bounds, ObjectStore
from tabhelm.simulated.transaction import AgentTransaction, Undo

if TYPE_CHECKING:
    from tabhelm.simulated.world import Pipe, SimulatedAgent, World

T = TypeVar("T")
OPEN_BOUND = 10.0
"""Seconds that an open may take before the port gives up."""


class Stored:
    """One database on disk: its stores, connections and transactions in the order in which they came."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage = storage
        self.name = name
        self.version = 0
        self.stores: dict[str, ObjectStore] = {}
        self.connections: list[Connection] = []
        self.live: list[AgentTransaction] = []
        self.unflushed: list[list[Undo]] = []
        """Undo logs of relaxed commits that a power cut may still take back."""

    def enter(self, transaction: AgentTransaction) -> None:
        if transaction.finished:
            return
        if self.storage.databases.get(self.name) is not self:
            transaction.fail(DatabaseClosed(f"database {self.name!r} was deleted by the browser"))
            return
        self.live.append(transaction)
        self.start_ready()

    def leave(self, transaction: AgentTransaction) -> None:
        if transaction in self.live:
            self.live.remove(transaction)
            self.start_ready()

    def start_ready(self) -> None:
        """Start each transaction that no earlier one excludes (overlapping stores, one of them writing)."""
        for at, transaction in enumerate(self.live):
            if not transaction.started and not any(transaction.excludes(earlier) for earlier in self.live[:at]):
                transaction.start()

    def committed(self, transaction: AgentTransaction, durability: Durability) -> None:
        if durability == "strict":
            self.unflushed.clear()  # a flush takes along all that was written before
        elif transaction.undo:
            self.unflushed.append(transaction.undo)
        if self.storage.on_commit is not None:
            self.storage.on_commit(self, transaction.stores)

    def upgrade(self, schema: Schema) -> None:
        for shape in schema.stores:
            store = self.stores.get(shape.name)
            if store is None:
                self.stores[shape.name] = ObjectStore(shape)
                continue
            for index in shape.indexes:
                if index.name not in store.indexes:
                    store.add_index(index)
        self.version = schema.version


class Storage:
    """The origin's storage."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.stream("storage")
        self.databases: dict[str, Stored] = {}
        self.on_commit: Callable[[Stored, tuple[str, ...]], None] | None = None
        """Called with the database and the stores of each transaction the moment that it is complete: for tests."""

    def stored(self, name: str) -> Stored:
        if name not in self.databases:
            self.databases[name] = Stored(self, name)
        return self.databases[name]

    @property
    def size(self) -> int:
        """Bytes of all records, as JSON."""
        return sum(store.size for stored in self.databases.values() for store in stored.stores.values())

    def wipe(self) -> None:
        """Clear the origin's storage: connections are closed, transactions fail, the next open finds nothing."""
        self.world.note("storage", "wiped")
        old, self.databases = self.databases, {}
        for stored in old.values():
            for connection in list(stored.connections):
                connection.lost()
            for transaction in list(stored.live):
                transaction.fail(DatabaseClosed(f"database {stored.name!r} was deleted by the browser"))

    def power_cut(self) -> None:
        """Lose a seeded tail of what was committed without a flush."""
        for stored in self.databases.values():
            keep = self.rng.randint(0, len(stored.unflushed))
            for undo in reversed(stored.unflushed[keep:]):
                for step in reversed(undo):
                    step()
            self.world.note("storage", f"power cut: {len(stored.unflushed) - keep} commits of {stored.name} lost")
            stored.unflushed.clear()

    def dump(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """All records of a database by store, for tests (not copies: do not change them)."""
        return {store: data.select(Bounds(None), None) for store, data in self.stored(name).stores.items()}


class Connection:
    """An open database, from the browser's side."""

    def __init__(self, database: SimulatedDatabase, stored: Stored) -> None:
        self.database = database
        self.stored = stored
        self.open = True
        self.told = False
        """Whether it was asked to give way to an upgrade."""
        stored.connections.append(self)

    def lost(self) -> None:
        """The browser closed it."""
        if self.open:
            self.close()
            self.database.agent.post(self.database.on_lost, self, "closed")

    def close(self) -> None:
        if self.open:
            self.open = False
            self.stored.connections.remove(self)


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
        self._callback: Callable[[DatabaseEvent], None] | None = None
        self._connection: Connection | None = None
        self._opening: object | None = None
        """The running attempt to open."""
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
        self._callback = callback

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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
        elif self._opening is None:
            self._opening = object()
            self._open(self._opening)
        try:
            return await waiter  # one open for all who wait: a cancelled one leaves it to the others
        finally:
            self._waiters.remove(waiter)

    def _open(self, opening: object) -> None:
        def end(result: Connection | Exception) -> None:
            timer.cancel()
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

        def give_up() -> None:
            self._tell("blocked")
            end(DatabaseBlocked(f"database {self._name!r} did not open within {OPEN_BOUND:g} s"))

        timer = self.agent.clock.call_later(OPEN_BOUND, give_up)
        self.to_browser.send(self._open_in_browser, lambda result: self.to_agent.send(self.agent.post, end, result))

    def _open_in_browser(self, answer: Callable[[Connection | Exception], None]) -> None:
        faults, world = self.storage.world.faults, self.storage.world
        if not self.agent.alive or faults.storage_hangs or self._opening is None:
            return
        if faults.storage_denied:
            answer(DatabaseDenied(f"database {self._name!r}: this context may not use IndexedDB"))
            return
        stored = self.storage.stored(self._name)
        if stored.version > self.schema.version:
            text = (
                f"database {self._name!r} has version {stored.version}, newer than the {self.schema.version} asked for"
            )
            answer(DatabaseError(text))
        elif stored.version == self.schema.version:
            answer(Connection(self, stored))
        elif stored.connections:
            for other in stored.connections:
                if not other.told:
                    other.told = True
                    other.database.agent.post(other.database.on_lost, other, "versionchange")
            world.loop.call_later(0.005, self._open_in_browser, answer, context=world.loop.root.context())
        else:
            stored.upgrade(self.schema)
            answer(Connection(self, stored))

    def _tell(self, event: DatabaseEvent) -> None:
        self.storage.world.note(self.agent.name, f"database {self._name} {event}")
        if self._callback is not None:
            self.agent.post(self._callback, event)

    def _bury(self) -> None:
        """The agent died: a commit on its way happens or not, all else is undone."""
        for stored in list(self.storage.databases.values()):
            for connection in [each for each in stored.connections if each.database is self]:
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
