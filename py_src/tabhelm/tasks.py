"""What is running, and who notices when it fails.

asyncio forgets tasks that nobody holds and keeps quiet about those that fail. Every background task of tabhelm belongs
to one ``Tasks`` group, which holds it, reports its failure and ends it with the group. Times go through the clock port:
``asyncio.timeout`` and ``asyncio.wait`` are not used in the page (the first leaves live timers behind under Pyodide,
the second leaks a finished task for each call on CPython 3.14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tabhelm.ports.clock import Clock

T = TypeVar("T")
OnFailure = Callable[[str, BaseException], None]
GRACE = 1.0
"""Seconds that what was cancelled has to end; then nobody waits for it any more."""


class Tasks:
    """A group of supervised tasks. Failures go to ``on_failure(name, error)``; cancellation is no failure."""

    def __init__(self, on_failure: OnFailure) -> None:
        self._on_failure = on_failure
        self._running: dict[asyncio.Task[Any], None] = {}

    def start(self, coroutine: Coroutine[Any, Any, T], name: str, *, supervised: bool = True) -> asyncio.Task[T]:
        """Run ``coroutine`` as a task. ``supervised=False`` is for a task whose starter awaits its outcome itself."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._done if supervised else self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._forget(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(task.get_name(), error)

    async def close(self) -> None:
        """Cancel all and wait until they have ended (except the task that calls this)."""
        current = asyncio.current_task()
        running = [task for task in self._running if task is not current]
        for task in running:
            task.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._running)


async def within(clock: Clock, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Await ``coroutine`` for at most ``seconds``, then cancel it and wait until it has ended: for code of ours.

    Raises:
        TimeoutError: it took longer.
    """
    task = asyncio.get_running_loop().create_task(coroutine)
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = clock.call_later(seconds, expire)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if expired and current is not None and not current.cancelling():
            raise TimeoutError(f"took longer than {seconds:g} s") from None
        raise
    finally:
        timer.cancel()


async def by_deadline(clock: Clock, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """As ``within``, for code of the app, which may be deaf to its end: it goes on alone if it will not end soon.

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
