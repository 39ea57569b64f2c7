"""Does the leader still do its job? A leader that holds its lock and cannot work is worse than none.

The check runs in a task of its own, and what is done about it needs nothing that the loop uses: a loop that waits for
its own pool, connection or lock delays neither.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from tabhelm.leadership.changes import Changes
from tabhelm.leadership.tenure import Tenure
from tabhelm.ports import Clock
from tabhelm.tasks import Tasks

Check = Callable[[], Any | Awaitable[Any]]
"""False or an exception: unhealthy. Anything else, ``None`` too: well."""


class HealthWatch:
    """From its making until the tenure ends, or the check has failed ``failures`` times in a row."""

    def __init__(
        self,
        tenure: Tenure,
        clock: Clock,
        tasks: Tasks,
        resign: Callable[[str], None],
        check: Check,
        every: float,
        timeout: float,
        failures: int,
    ) -> None:
        if not every > 0 or not timeout > 0 or failures < 1:
            raise ValueError(f"health: every {every!r}, timeout {timeout!r} and failures {failures!r} must be positive")
        self._tenure = tenure
        self._changes = Changes(clock)
        self._clock = clock
        self._tasks = tasks
        self._resign = resign
        self._check = check
        self._every = every
        self._timeout = timeout
        self._failures = failures
        self._task = tasks.start(self._watch(), f"health {tenure.resource}")
        tenure.on_revoked(self._stop)

    def _stop(self) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        failed = 0
        while self._tenure.ended is None:
            if await self._well():
                failed = 0
                self._tenure.set_health("ok")
            else:
                failed += 1
                self._tenure.set_health("failing")
            if failed >= self._failures:
                if self._tenure.ended is None:
                    self._resign("unhealthy")
                return
            await self._wait(self._every)

    async def _well(self) -> bool:
        asking = self._tasks.start(self._ask(), f"health check {self._tenure.resource}", supervised=False)
        asking.add_done_callback(lambda _: self._changes.tell())
        try:
            deadline = self._clock.monotonic() + self._timeout
            while not asking.done() and (left := deadline - self._clock.monotonic()) > 0:
                await self._changes.wait(left)
        finally:
            # Not waited for: a check that does not let itself be cancelled shall not keep us.
            asking.cancel()
        return asking.done() and not asking.cancelled() and asking.exception() is None and asking.result()

    async def _ask(self) -> bool:
        answer = self._check()
        return (await answer if isawaitable(answer) else answer) is not False

    async def _wait(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            await self._changes.wait(left)
