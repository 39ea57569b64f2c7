"""What a Python leader loop is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tabhelm.errors import LeadershipLost
from tabhelm.fencing.http_form import idempotency_key_header, token_header
from tabhelm.fencing.token import FencingToken
from tabhelm.leadership.breaker import OPEN_FOR, CircuitBreaker
from tabhelm.leadership.health import Check, HealthWatch
from tabhelm.leadership.serving import Handler, Served
from tabhelm.leadership.tenure import Tenure
from tabhelm.messages import Progress
from tabhelm.ports import Clock
from tabhelm.tasks import Tasks

STREAM = "loop"


class LeaderContext:
    """One tenure, as its loop sees it. The loop's task is cancelled when the tenure ends.

    A loop ends its tenure by returning. It must not swallow ``asyncio.CancelledError``: one that outlives its grace
    leads no more, and whatever it still writes is refused.
    """

    def __init__(
        self,
        tenure: Tenure,
        clock: Clock,
        tasks: Tasks,
        resign: Callable[[str], None],
        *,
        health_every: float = 5.0,
    ) -> None:
        self.tenure = tenure
        self._clock = clock
        self._tasks = tasks
        self._resign = resign
        self._health_every = health_every
        self._breakers: dict[str, CircuitBreaker] = {}
        self._sleepers: dict[asyncio.Event, None] = {}
        tenure.on_revoked(self._wake_all)

    @property
    def resource(self) -> str:
        """The token resource: ``app:resource[:scope]``."""
        return self.tenure.resource

    @property
    def epoch(self) -> int | None:
        """This tenure's epoch; ``None`` where the authority is not fenced."""
        return self.tenure.epoch

    @property
    def lost(self) -> bool:
        """Whether leadership is over: nothing protected may begin any more."""
        return self.tenure.ended is not None

    def next_token(self) -> FencingToken:
        """A new fencing token for one protected write.

        Raises:
            LeadershipLost: leadership is over.
        """
        return self.tenure.stream(STREAM).next_token()

    def headers(self, operation_id: str | None = None) -> dict[str, str]:
        """HTTP headers for one protected write: a new token, and the idempotency key if there is one.

        Raises:
            LeadershipLost: leadership is over.
        """
        headers = {"Fencing-Token": token_header(self.next_token())}
        if operation_id is not None:
            headers["Idempotency-Key"] = idempotency_key_header(operation_id)
        return headers

    async def check(self) -> None:
        """Verify authority and epoch in the store: before something irreversible.

        Raises:
            LeadershipLost: leadership is over.
        """
        await self.tenure.check()

    def serve(self, handlers: Mapping[str, Handler], *, idempotent: Iterable[str] = ()) -> None:
        """Answer those who ask this leader (``election.ask``): ``async def handler(args, call)`` by method.

        ``args`` is what JSON can hold, and so must be what it returns; ``call`` says who asks (a hint, no proof) and
        lets it ``call.refuse(reason)``. Its exception goes to the asker. Handlers run beside the loop and are cancelled
        with it. ``idempotent``: methods that may be repeated on the next leader, under the same
        ``call.idempotency_key``. Called again, it adds methods and replaces those of the same name.

        Raises:
            LeadershipLost: leadership is over.
            ValueError, TypeError: a name, or a handler, is not valid.
        """
        self._served().serve(handlers, idempotent)

    def publish(self, value: Any) -> None:
        """Let all tabs that stand for this resource see ``value`` (``election.state``); it replaces the one before.

        Raises:
            LeadershipLost: leadership is over.
            NotCloneable: JSON cannot hold it, or it is too long.
        """
        self._served().publish(value)

    def _served(self) -> Served:
        if self.tenure.served is None:
            raise LeadershipLost(self.resource, self.tenure.ended or "not-begun")
        return self.tenure.served

    async def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            LeadershipLost: leadership ended meanwhile.
        """
        self.tenure.ensure()
        awake = asyncio.Event()
        self._sleepers[awake] = None
        timer = self._clock.call_later(seconds, awake.set)
        try:
            await awake.wait()
        finally:
            timer.cancel()
            self._sleepers.pop(awake, None)
        self.tenure.ensure()

    # -- how it does --------------------------------------------------------------------------------------------------

    def progress(self, value: Progress = None) -> None:
        """Say that the work goes on, and how far it is: other tabs see it, and ``stall_after`` counts from here.

        Raises:
            InvalidPayload: not a number or a short text.
        """
        self.tenure.ensure()
        self.tenure.report(value, self._clock.monotonic())

    def health(
        self, check: Check, *, every: float | None = None, timeout: float | None = None, failures: int = 1
    ) -> None:
        """Call ``check()`` now and every so many seconds (policy ``health_every``) while this tab leads.

        It may be an async function. One that returns false, raises, or takes longer than ``timeout`` seconds (as long
        as ``every`` if not told) has failed; after so many ``failures`` in a row the tab resigns as ``unhealthy``, and
        does not stand for the policy's ``cool_down``. It runs beside the loop: what the loop waits for does not delay
        it.

        Raises:
            LeadershipLost: leadership is over.
            ValueError: a number that is not positive.
        """
        self.tenure.ensure()
        every = self._health_every if every is None else every
        HealthWatch(self.tenure, self._clock, self._tasks, self._resign, check, every, timeout or every, failures)

    def breaker(
        self,
        name: str,
        *,
        failures: int = 5,
        open_for: float = OPEN_FOR,
        resign_after: float | None = 60.0,
        resign_opens: int | None = 5,
    ) -> CircuitBreaker:
        """A circuit breaker for calls to something that this leader depends on; the same one for the same name.

        It opens after so many ``failures`` in a row; after ``open_for`` seconds one call is tried. The tab resigns as
        ``unhealthy`` when it has not been closed for ``resign_after`` seconds, or opened ``resign_opens`` times.

        Raises:
            LeadershipLost: leadership is over.
            ValueError: a number that is not positive.
        """
        self.tenure.ensure()
        if name not in self._breakers:
            self._breakers[name] = CircuitBreaker(
                name,
                self._clock,
                failures=failures,
                open_for=open_for,
                resign_after=resign_after,
                resign_opens=resign_opens,
                resign=self._unhealthy,
            )
            self.tenure.on_revoked(self._breakers[name].close)
        return self._breakers[name]

    def _unhealthy(self) -> None:
        if self.tenure.ended is None:
            self.tenure.set_health("failing")
            self._resign("unhealthy")

    def _wake_all(self) -> None:
        for awake in self._sleepers:
            awake.set()
