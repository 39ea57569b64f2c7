"""IndexedDB: transactions in order, driven bodies, strict and relaxed durability, and everything that goes wrong.

Split as in a browser: ``Storage`` and ``Stored`` are the browser's process, which goes on when an agent dies;
``SimulatedDatabase`` and ``transaction.AgentTransaction`` live in the agent and stop with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tabhelm.errors import DatabaseBlocked, DatabaseClosed, DatabaseDenied, DatabaseError, DatabaseNewer
from tabhelm.ports.database import DatabaseEvent, Durability, Schema, Transaction, TransactionMode
from tabhelm.simulated.loop import fail, settle
from tabhelm.simulated.records import Bounds, ObjectStore
from tabhelm.simulated.transaction import AgentTransaction, Undo

if TYPE_CHECKING:
    from tabhelm.simulated.world import Pipe, SimulatedAgent, World

T = TypeVar("T")
Answer = Callable[["Connection | Exception"], None]
OPEN_BOUND = 10.0
"""Seconds that a caller waits for an open."""
LONGEST_PAUSE = 320.0
"""Seconds between two requests of one attempt to open; they double."""
_POLL = 0.005


class Stored:
    """One database on disk: its stores, connections and transactions in the order in which they came."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage = storage
        self.name = name
        self.version = 0
        self.stores: dict[str, ObjectStore] = {}
        self.connections: list[Connection | ForeignConnection] = []
        self.changing: list[object] = []
        """Upgrades and deletions that wait until all connections are gone; whoever opens waits behind them."""
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

    def close_all(self, why: str) -> None:
        for connection in list(self.connections):
            connection.lost()
        for transaction in list(self.live):
            transaction.fail(DatabaseClosed(why))

    def change(self, token: object, action: Callable[[Stored], None]) -> None:
        """Do it once no connection is left, which are all asked to go, and what waited before is done."""
        if token not in self.changing:
            self.changing.append(token)
        for connection in self.connections:
            if not connection.told:
                connection.told = True
                connection.give_way()
        if self.connections or self.live or self.changing[0] is not token:
            loop = self.storage.world.loop
            loop.call_later(_POLL, self.change, token, action, context=loop.root.context())
            return
        self.changing.remove(token)
        action(self)

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
        self.persistent = False
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
            stored.close_all(f"database {stored.name!r} was deleted by the browser")

    def close_connections(self, name: str) -> None:
        """The browser closes all connections of a database (its backend crashed, say); what was committed stays."""
        self.world.note("storage", f"connections of {name} closed")
        self.stored(name).close_all(f"the browser closed database {name!r}")

    def foreign(self, name: str) -> ForeignConnection:
        """A connection of somebody who never gives way: an old release, the app's own code, a hung page."""
        return ForeignConnection(self.stored(name))

    def delete(self, name: str, done: Callable[[], None] = lambda: None) -> None:
        """A page deletes a database: all connections are asked to give way, and it waits for those that do not."""
        self.world.note("storage", f"{name} to be deleted")

        def deletion(stored: Stored) -> None:
            if self.databases.get(name) is stored:
                del self.databases[name]
            self.world.note("storage", f"{name} deleted")
            done()

        self.stored(name).change(object(), deletion)

    def upgrade(self, name: str, version: int, done: Callable[[], None] = lambda: None) -> None:
        """A page of another release opens a database at a higher version, and closes it again."""
        self.world.note("storage", f"{name} to be upgraded")

        def upgrading(stored: Stored) -> None:
            stored.version = version
            self.world.note("storage", f"{name} upgraded to {version}")
            done()

        self.stored(name).change(object(), upgrading)

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


class ForeignConnection:
    """An open connection that is not the port's, and gives way to nobody until it is closed."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.told = False
        stored.connections.append(self)

    def give_way(self) -> None:
        """It does not."""

    def lost(self) -> None:
        self.close()

    def close(self) -> None:
        if self in self.stored.connections:
            self.stored.connections.remove(self)


class Connection:
    """An open database, from the browser's side."""

    def __init__(self, database: SimulatedDatabase, stored: Stored) -> None:
        self.database = database
        self.stored = stored
        self.open = True
        self.told = False
        """Whether it was asked to give way to an upgrade."""
        stored.connections.append(self)

    def give_way(self) -> None:
        """Somebody wants to upgrade or delete the database."""
        self.database.agent.post(self.database.on_lost, self, "versionchange")

    def lost(self) -> None:
        """The browser closed it."""
        if self.open:
            self.close()
            self.database.agent.post(self.database.on_lost, self, "closed")

    def close(self) -> None:
        if self.open:
            self.open = False
            self.stored.connections.remove(self)


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
            world.loop.call_later(_POLL, self._open_in_browser, opening, answer, context=world.loop.root.context())
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
