"""What a Python leader loop is given."""

from __future__ import annotations

import asyncio

from tabhelm.fencing.http_form import idempotency_key_header, token_header
from tabhelm.fencing.token import FencingToken
from tabhelm.leadership.tenure import Tenure
from tabhelm.ports import Clock

STREAM = "loop"


class LeaderContext:
    """One tenure, as its loop sees it. The loop's task is cancelled when the tenure ends.

    A loop ends its tenure by returning. It must not swallow ``asyncio.CancelledError``: one that outlives its grace
    leads no more, and whatever it still writes is refused.
    """

    def __init__(self, tenure: Tenure, clock: Clock) -> None:
        self.tenure = tenure
        self._clock = clock
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

    def _wake_all(self) -> None:
        for awake in self._sleepers:
            awake.set()
