"""IndexedDB: databases that open at their first transaction and open anew after their connection was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tabhelm.browser._js import Thrown, create_proxy, js, js_exception, to_js_value
from tabhelm.browser.clock import BrowserClock
from tabhelm.browser.connection import Connection
from tabhelm.browser.transaction import BrowserTransaction
from tabhelm.errors import DatabaseBlocked, DatabaseClosed, DatabaseError
from tabhelm.ports.database import DatabaseEvent, Durability, Schema, Transaction, TransactionMode

T = TypeVar("T")

LOOK_EVERY = 5.0
LOOKS = 4
LAST_LOOK = 12
"""Storage backends hang: a transaction that still runs at ``LOOKS`` looks, so many seconds apart, is given up. One that
is committing a write, so that nobody can say whether it was done, only at ``LAST_LOOK``. Looks, not a time: an engine
that was suspended must first read the answers that came meanwhile."""

_OUR_FAULT = frozenset({"NotFoundError", "InvalidAccessError", "TypeError", "DataError"})
"""What beginning a transaction throws over its arguments; everything else means that the connection is dead."""


class BrowserDatabase:
    def __init__(self, name: str, schema: Schema, clock: BrowserClock) -> None:
        self._schema = schema
        self._callbacks: list[Callable[[DatabaseEvent], None]] = []
        self._given: dict[object, Any] = {}
        """What transactions are begun with, as JavaScript values: made once."""
        self._watch = _Watch(name)
        self._connection = Connection(name, schema, clock, self._tell)

    @property
    def name(self) -> str:
        return self._connection.name

    async def transaction(
        self,
        stores: Sequence[str],
        mode: TransactionMode,
        body: Callable[[Transaction], Coroutine[Any, Any, T]],
        *,
        durability: Durability = "strict",
    ) -> T:
        connection, begun = await self._begin(tuple(stores), mode, durability)
        transaction = BrowserTransaction(self.name, self._schema, begun)
        self._watch.begin(transaction, reads=mode == "readonly")
        try:
            return await transaction.run(body)
        finally:
            self._watch.end(transaction)
            if transaction.dead:
                self._connection.lost(connection)

    async def _begin(self, stores: tuple[str, ...], mode: TransactionMode, durability: Durability) -> tuple[Any, Any]:
        """A connection and its new ``IDBTransaction``, alive only until the loop runs: await nothing before."""
        thrown = Thrown("", "")
        for _ in range(2):
            database = await self._connection.get()
            try:
                names = self._given.get(stores) or self._given.setdefault(stores, to_js_value(list(stores)))
                options = self._given.get(durability) or self._given.setdefault(
                    durability, to_js_value({"durability": durability})
                )
                return database, database.transaction(names, mode, options)
            except js_exception() as error:
                thrown = Thrown.of(error)
            if thrown.name == "NotFoundError":
                raise DatabaseError(
                    f"database {self.name!r} lacks some of the stores {', '.join(stores)}: something else than "
                    "this code made it (an unreleased build, or the app itself); delete it, and it is made anew"
                )
            if thrown.name in _OUR_FAULT:
                raise DatabaseError(f"database {self.name!r}, stores {', '.join(stores)}: {thrown}")
            # The connection is dead (wiped storage, a lost backend). Nothing was queued yet: once more is safe.
            self._connection.lost(database)
        raise DatabaseClosed(
            f"database {self.name!r} was closed again as soon as it was opened ({thrown}); "
            "if it stays so, close all tabs of this site, or restart the browser"
        )

    def subscribe(self, callback: Callable[[DatabaseEvent], None]) -> None:
        self._callbacks.append(callback)

    def _tell(self, event: DatabaseEvent) -> None:
        for callback in tuple(self._callbacks):
            asyncio.get_event_loop().call_soon(callback, event)

    def close(self) -> None:
        self._connection.close()
        self._watch.close()


class _Watch:
    """Gives transactions up that do not end. One timer for all of them, and none while there are none."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._looks: dict[BrowserTransaction, int] = {}
        """At each transaction that has not ended. The first look may come too early to count."""
        self._reads: set[BrowserTransaction] = set()
        self._listener = self._look  # our own reference: the proxy gives up its one while it is running
        self._proxy: Any = None
        self._timer: Any = None
        self._closed = False

    def begin(self, transaction: BrowserTransaction, *, reads: bool) -> None:
        self._looks[transaction] = -1
        if reads:
            self._reads.add(transaction)
        self._arm()

    def end(self, transaction: BrowserTransaction) -> None:
        self._looks.pop(transaction, None)
        self._reads.discard(transaction)
        if self._closed:
            self._rest()

    def close(self) -> None:
        """No transaction begins any more, and those that run are cut off."""
        self._closed = True
        for transaction in list(self._looks):
            transaction.cut_off(DatabaseClosed(f"database {self._database!r} was closed by close()"))
        self._rest()

    def _rest(self) -> None:
        if not self._looks and self._proxy is not None:
            js().clearTimeout(self._timer)
            self._proxy.destroy()
            self._proxy = None

    def _arm(self) -> None:
        self._proxy = self._proxy or create_proxy(self._listener)
        if self._timer is None:
            self._timer = js().setTimeout(self._proxy, LOOK_EVERY * 1000)

    def _look(self) -> None:
        self._timer = None
        if self._looks:
            self._arm()
        for transaction in list(self._looks):
            self._looks[transaction] += 1
            if (looks := self._looks[transaction]) >= LOOKS:
                self._give_up(transaction, looks)

    def _give_up(self, transaction: BrowserTransaction, looks: int) -> None:
        last, reads = looks >= LAST_LOOK, transaction in self._reads
        why = f"the browser did not finish a transaction within {looks * LOOK_EVERY:g} s"
        if last and not reads:
            why += "; whether it was written is not known"
        failure = DatabaseBlocked(f"database {self._database!r}: {why}")
        transaction.give_up(failure, unknown=last or reads)


class BrowserDatabases:
    def __init__(self, clock: BrowserClock | None = None) -> None:
        self._clock = clock or BrowserClock()

    def database(self, name: str, schema: Schema) -> BrowserDatabase:
        return BrowserDatabase(name, schema, self._clock)
