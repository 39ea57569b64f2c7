"""Transactions on a queue that know its totals, and remember them: what is gone with the storage can be told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from tabhelm.ports import Clock, Database, Entropy, Transaction
from tabhelm.ports.database import TransactionMode
from tabhelm.queue.totals import COUNTED, Book, Totals

T = TypeVar("T")


class CountedStore:
    """One queue (``resource`` is its token resource) in the app's database."""

    def __init__(self, database: Database, clock: Clock, entropy: Entropy, resource: str) -> None:
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self.resource = resource
        self.totals: Totals | None = None
        """As of the last transaction here; ``None`` before the first."""
        self.on_lost: Callable[[int], None] = lambda operations: None
        """Called with the number of acknowledged operations that are gone with the storage that held them."""

    async def look(self) -> None:
        """See whether what was stored is still there; ``on_lost`` is told."""

        async def body(tx: Transaction, book: Book) -> None:
            return None

        await self._counted(COUNTED, "readonly", body)

    async def _counted(
        self,
        stores: Sequence[str],
        mode: TransactionMode,
        body: Callable[[Transaction, Book], Coroutine[None, None, T]],
    ) -> T:
        """A transaction that knows the totals; what it makes of them is remembered when it is complete."""

        async def counting(tx: Transaction) -> tuple[str, Totals, T]:
            book = Book(tx, self.resource, self._draw)
            result = await body(tx, book)
            totals = await book.totals()
            return book.born, totals, result

        born, totals, result = await self._database.transaction(stores, mode, counting)
        before, self.totals = self.totals, totals
        if before is not None and before.born and before.born != born and before.undone:
            self.on_lost(before.undone)
        return result

    def _draw(self) -> str:
        return self._entropy.token_bytes(8).hex()
