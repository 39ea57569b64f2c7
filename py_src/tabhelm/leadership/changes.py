"""What one election's run waits for: that something changed. It then looks at everything anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tabhelm.ports import Clock

T = TypeVar("T")


class Changes:
    """Told by whoever changes something; waited for by the run alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told = asyncio.Event()

    def tell(self) -> None:
        """Something changed."""
        self._told.set()

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until something changed, or for ``timeout`` seconds."""
        timer = self._clock.call_later(timeout, self.tell) if timeout is not None else None
        try:
            await self._told.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._told.clear()

    async def follow(
        self,
        task: asyncio.Task[T],
        goes_on: Callable[[], bool],
        look_again: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Wait until ``task`` has ended; cancel it as soon as it should not go on, and when we are cancelled.

        ``look_again`` says after how many seconds to ask ``goes_on`` again though nothing changed.
        """
        task.add_done_callback(lambda _: self.tell())
        try:
            while not task.done():
                if goes_on():
                    await self.wait(look_again())
                else:
                    task.cancel()
                    await _settled(task)
        except asyncio.CancelledError:
            task.cancel()
            await _settled(task)
            raise


async def _settled(task: asyncio.Task[T]) -> None:
    """Wait for a task that was just cancelled, without raising its outcome."""
    await asyncio.gather(task, return_exceptions=True)
