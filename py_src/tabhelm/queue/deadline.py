"""A time limit for code of the app that may be deaf to it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tabhelm.ports import Clock

T = TypeVar("T")
GRACE = 1.0
"""Seconds that what was cancelled has to end; then nobody waits for it any more."""


async def by_deadline(clock: Clock, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Await ``coroutine`` for at most ``seconds``, then cancel it; it goes on alone if it will not end.

    Raises:
        TimeoutError: it took longer.
    """
    task = asyncio.get_running_loop().create_task(coroutine)
    try:
        if not await _ended(clock, seconds, task):
            task.cancel()
            await _ended(clock, GRACE, task)
            raise TimeoutError(f"took longer than {seconds:g} s")
    except asyncio.CancelledError:
        task.cancel()
        await _ended(clock, GRACE, task)
        raise
    return task.result()


async def _ended(clock: Clock, seconds: float, task: asyncio.Task[Any]) -> bool:
    """Wait for a task, and no longer than so; whether it has ended."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(*_: object) -> None:
        if not over.done():
            over.set_result(None)
        if task.done() and not task.cancelled():
            task.exception()  # somebody looked at it, should nobody else do so

    task.add_done_callback(end)
    timer = clock.call_later(seconds, end)
    try:
        await over
    finally:
        timer.cancel()
    return task.done()
