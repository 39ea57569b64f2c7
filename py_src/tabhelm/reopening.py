"""A channel and a database that can be given up for a while: a page in the back/forward cache may keep neither.

A cached page is evicted by one message to its channel, and its database connection stands in the way of others. What
holds these objects need not know that they were closed and opened again.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Callable, Coroutine, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from tabhelm.errors import DatabaseClosed
from tabhelm.ports.channel import Channel
from tabhelm.ports.database import Database, DatabaseEvent, Durability, Transaction, TransactionMode

T = TypeVar("T")


class ReopeningChannel:
    """A ``Channel``. What is posted while it is suspended is dropped, as messages may be."""

    def __init__(self, opener: Callable[[], Channel]) -> None:
        self._opener = opener
        self._callback: Callable[[object], None] | None = None
        self._channel: Channel | None = opener()

    @property
    def suspended(self) -> bool:
        return self._channel is None

    def post(self, text: str) -> None:
        if self._channel is not None:
            self._channel.post(text)

    def subscribe(self, callback: Callable[[object], None]) -> None:
        self._callback = callback
        if self._channel is not None:
            self._channel.subscribe(callback)

    def suspend(self) -> None:
        """Close it until ``resume``; harmless when it is closed."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def resume(self) -> None:
        """Open it again; harmless when it is open."""
        if self._channel is None:
            self._channel = self._opener()
            if self._callback is not None:
                self._channel.subscribe(self._callback)

    def close(self) -> None:
        self.suspend()


class ReopeningDatabase:
    """A ``Database``. A transaction that is asked for while it is suspended waits until it is resumed, and one that was
    cut off by that begins again then: its body runs once more. They begin in the order in which they were asked for.
    """

    def __init__(self, name: str, opener: Callable[[], Database]) -> None:
        self.name = name
        self._opener = opener
        self._callbacks: list[Callable[[DatabaseEvent], None]] = []
        self._suspended = False
        self._closed = False
        self._numbers = itertools.count()
        self._running: dict[int, Database] = {}
        """By number, in the order of asking: what each was begun over."""
        self._line: list[tuple[int, asyncio.Future[None]]] = []
        """Those who wait, or have not woken yet."""
        self._database: Database = opener()

    async def transaction(
        self,
        stores: Sequence[str],
        mode: TransactionMode,
        body: Callable[[Transaction], Coroutine[Any, Any, T]],
        *,
        durability: Durability = "strict",
    ) -> T:
        number = next(self._numbers)
        turn = self._line_up(number) if self._line or self._must_wait() else None
        while True:
            while turn is not None:
                try:
                    await turn[1]
                finally:
                    self._line.remove(turn)
                # Since it was let go on, all may have been suspended once more.
                turn = self._line_up(number) if self._must_wait() else None
            database = self._running[number] = self._database
            try:
                return await database.transaction(stores, mode, body, durability=durability)
            except DatabaseClosed:
                if self._closed or (database is self._database and not self._suspended):
                    raise
                turn = self._line_up(number)  # it was closed by ``suspend``, and nothing was written
            finally:
                del self._running[number]
                if self._line:
                    # A moment later: what is in line itself would not wait for those before it.
                    asyncio.get_running_loop().call_soon(self._let_go_on)

    def _must_wait(self) -> bool:
        """Suspended, or something still runs over an earlier connection: it may be cut off, and then it comes first."""
        earliest = next(iter(self._running.values()), self._database)  # who began first has the oldest connection
        return not self._closed and (self._suspended or earliest is not self._database)

    def _line_up(self, number: int) -> tuple[int, asyncio.Future[None]]:
        loop = asyncio.get_running_loop()
        turn = number, loop.create_future()
        bisect.insort(self._line, turn, key=itemgetter(0))
        loop.call_soon(self._let_go_on)
        return turn

    def _let_go_on(self) -> None:
        if not self._must_wait():
            for _, waiter in self._line:
                if not waiter.done():
                    waiter.set_result(None)

    @property
    def suspended(self) -> bool:
        return self._suspended

    def subscribe(self, callback: Callable[[DatabaseEvent], None]) -> None:
        self._callbacks.append(callback)
        self._database.subscribe(callback)

    def suspend(self) -> None:
        """Close the connection until ``resume``; harmless when it is closed.

        What runs in it is aborted, to be begun again. Whoever may be suspended at any moment could not end it, and an
        open transaction keeps everybody else's waiting: Chromium ends it after a minute.
        """
        self._suspended = True
        self._database.close()

    def resume(self) -> None:
        """Let transactions begin again, over a new connection; harmless when they may, or never will."""
        if self._closed or not self._suspended:
            return
        self._database = self._opener()
        for callback in self._callbacks:
            self._database.subscribe(callback)
        self._suspended = False
        self._let_go_on()

    def close(self) -> None:
        """Close it for good: from now on every transaction raises ``DatabaseClosed``."""
        self._closed = True
        self._database.close()
        self._let_go_on()
