"""IndexedDB: databases that open at their first transaction and open anew after their connection was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tabhelm.browser._js import Thrown, js_exception, to_js_value
from tabhelm.browser.clock import BrowserClock
from tabhelm.browser.connection import Connection
from tabhelm.browser.transaction import BrowserTransaction
from tabhelm.errors import DatabaseClosed, DatabaseError
from tabhelm.ports.database import DatabaseEvent, Durability, Schema, Transaction, TransactionMode

T = TypeVar("T")


class BrowserDatabase:
    def __init__(self, name: str, schema: Schema, clock: BrowserClock) -> None:
        self._schema = schema
        self._callbacks: list[Callable[[DatabaseEvent], None]] = []
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
        transaction = await self._begin(list(stores), mode, durability)
        return await BrowserTransaction(self.name, self._schema, transaction).run(body)

    async def _begin(self, stores: list[str], mode: TransactionMode, durability: Durability) -> Any:
        """A new ``IDBTransaction``. The caller goes on without awaiting: it is alive only until the loop runs."""
        for last in (False, True):
            database = await self._connection.get()
            try:
                return database.transaction(to_js_value(stores), mode, to_js_value({"durability": durability}))
            except js_exception() as error:
                thrown = Thrown.of(error)
            if thrown.name != "InvalidStateError":
                raise DatabaseError(f"database {self.name!r}, stores {', '.join(stores)}: {thrown}")
            # The connection is dead (wiped storage). Nothing was queued yet, so that once more is safe.
            self._connection.lost(database)
            if last:
                break
        raise DatabaseClosed(f"database {self.name!r} was closed again as soon as it was opened")

    def subscribe(self, callback: Callable[[DatabaseEvent], None]) -> None:
        self._callbacks.append(callback)

    def _tell(self, event: DatabaseEvent) -> None:
        for callback in tuple(self._callbacks):
            asyncio.get_event_loop().call_soon(callback, event)

    def close(self) -> None:
        self._connection.close()


class BrowserDatabases:
    def __init__(self, clock: BrowserClock | None = None) -> None:
        self._clock = clock or BrowserClock()

    def database(self, name: str, schema: Schema) -> BrowserDatabase:
        return BrowserDatabase(name, schema, self._clock)
