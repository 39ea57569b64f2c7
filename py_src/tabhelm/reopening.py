"""A channel and a database that can be given up for a while: a page in the back/forward cache may keep neither.

A cached page is evicted by one message to its channel, and its database connection stands in the way of others. What
holds these objects need not know that they were closed and opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

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
    """A ``Database``. A transaction that is asked for while it is suspended waits until it is resumed."""

    def __init__(self, name: str, opener: Callable[[], Database]) -> None:
        self.name = name
        self._opener = opener
        self._callbacks: list[Callable[[DatabaseEvent], None]] = []
        self._suspended = False
        self._waiters: list[asyncio.Future[None]] = []
        self._database: Database = opener()

    async def transaction(
        self,
        stores: Sequence[str],
        mode: TransactionMode,
        body: Callable[[Transaction], Coroutine[Any, Any, T]],
        *,
        durability: Durability = "strict",
    ) -> T:
        if self._suspended or self._waiters:  # in line behind those who wait, or have not woken yet
            await self._line_up()
        return await self._database.transaction(stores, mode, body, durability=durability)

    @property
    def suspended(self) -> bool:
        return self._suspended

    async def _line_up(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        if not self._suspended:
            loop.call_soon(_wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    def subscribe(self, callback: Callable[[DatabaseEvent], None]) -> None:
        self._callbacks.append(callback)
        self._database.subscribe(callback)

    def suspend(self) -> None:
        """Close the connection until ``resume``; harmless when it is closed.

        What runs in it is aborted. Whoever may be suspended at any moment could not end it, and an open transaction
        keeps everybody else's waiting: Chromium ends it after a minute.
        """
        self._suspended = True
        self._database.close()

    def resume(self) -> None:
        """Let transactions begin again, over a new connection; harmless when they may."""
        if not self._suspended:
            return
        self._database = self._opener()
        for callback in self._callbacks:
            self._database.subscribe(callback)
        self._let_go_on()

    def close(self) -> None:
        """Close it for good: from now on every transaction raises ``DatabaseClosed``."""
        self._database.close()
        self._let_go_on()

    def _let_go_on(self) -> None:
        self._suspended = False
        for waiter in self._waiters:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
