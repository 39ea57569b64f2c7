"""IndexedDB: databases that open at their first transaction and open anew after their connection was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tabhelm.browser._js import Thrown, js_exception, to_js_value
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
        self._clock = clock
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
        connection, begun = await self._begin(list(stores), mode, durability)
        transaction = BrowserTransaction(self.name, self._schema, begun)
        watch = _Watch(self._clock, self.name, transaction, mode)
        try:
            return await transaction.run(body)
        finally:
            watch.end()
            if transaction.dead:
                self._connection.lost(connection)

    async def _begin(self, stores: list[str], mode: TransactionMode, durability: Durability) -> tuple[Any, Any]:
        """A connection and its new ``IDBTransaction``, alive only until the loop runs: await nothing before."""
        thrown = Thrown("", "")
        for _ in range(2):
            database = await self._connection.get()
            try:
                return database, database.transaction(
                    to_js_value(stores), mode, to_js_value({"durability": durability})
                )
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


class _Watch:
    """Gives a transaction up that does not end."""

    def __init__(
        self, clock: BrowserClock, database: str, transaction: BrowserTransaction, mode: TransactionMode
    ) -> None:
        self._clock = clock
        self._database = database
        self._transaction = transaction
        self._reads = mode == "readonly"
        self._looks = 0
        self._timer = clock.call_later(LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._looks += 1
        if self._looks >= LOOKS:
            last = self._looks >= LAST_LOOK
            why = f"the browser did not finish a transaction within {self._looks * LOOK_EVERY:g} s"
            if last and not self._reads:
                why += "; whether it was written is not known"
            failure = DatabaseBlocked(f"database {self._database!r}: {why}")
            self._transaction.give_up(failure, unknown=last or self._reads)
        self._timer = self._clock.call_later(LOOK_EVERY, self._look)

    def end(self) -> None:
        self._timer.cancel()


class BrowserDatabases:
    def __init__(self, clock: BrowserClock | None = None) -> None:
        self._clock = clock or BrowserClock()

    def database(self, name: str, schema: Schema) -> BrowserDatabase:
        return BrowserDatabase(name, schema, self._clock)
