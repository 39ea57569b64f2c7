"""The origin's storage, from the browser's side: what is on disk, who has it open, what waits for whom.

The browser's process goes on when an agent dies; ``database.SimulatedDatabase`` lives in the agent and stops with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tabhelm.errors import DatabaseClosed
from tabhelm.ports.database import Durability, Schema
from tabhelm.simulated.records import Bounds, ObjectStore
from tabhelm.simulated.transaction import AgentTransaction, Undo

if TYPE_CHECKING:
    from tabhelm.simulated.database import SimulatedDatabase
    from tabhelm.simulated.world import World

POLL = 0.005
"""Seconds after which what waits for connections to go looks again."""


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
            loop.call_later(POLL, self.change, token, action, context=loop.root.context())
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
