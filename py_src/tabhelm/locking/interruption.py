"""End what the current task awaits, from a callback, as ``asyncio.timeout`` does with a clock of its own."""

from __future__ import annotations

import asyncio


class Interruption:
    """Made by the task that may be interrupted. ``end(cause)`` cancels what it awaits; whoever catches the
    ``CancelledError`` asks ``caught()`` whether it was that, or a cancellation that must go on.

    A task and a result to wait for would need a second task: its result is lost when the first is cancelled at the very
    moment in which it comes, and here the result is a lock that nobody would then release.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "only a task can be interrupted"
        self._task = task
        self._before = task.cancelling()
        self._over = False
        self.cause: str | None = None

    def end(self, cause: str) -> None:
        """Interrupt, once; harmless when it is over."""
        if self.cause is None and not self._over:
            self.cause = cause
            self._task.cancel()

    def close(self) -> None:
        """Nothing is to be interrupted any more."""
        self._over = True

    def caught(self) -> bool:
        """Call once, when what was awaited has ended: whether it was interrupted by us, and by nobody else."""
        self._over = True
        return self.cause is not None and self._task.uncancel() <= self._before
