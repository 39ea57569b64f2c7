"""Requests that wait for leases that are taken, and what wakes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tabhelm.server.asgi import Receive
from tabhelm.server.lease_metrics import LeaseMetrics
from tabhelm.server.lease_rules import Granted, Held
from tabhelm.server.lease_store import LeaseKey

_LOOK_EVERY = 0.5
"""Seconds between two looks of a request that waits: another process may have given the lease back."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """One request. ``gone``: nobody wants the lease for it any more."""

    candidate: str
    news: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False

    def leave(self) -> None:
        self.gone = True
        self.news.set()


class Waiting:
    """All requests of this process that wait. ``most`` of them do, ``monotonic`` gives seconds."""

    def __init__(self, metrics: LeaseMetrics, most: int, monotonic: Callable[[], float]) -> None:
        self._metrics = metrics
        self._most = most
        self._monotonic = monotonic
        self._waiters: dict[LeaseKey, dict[_Waiter, None]] = {}

    def is_full(self) -> bool:
        """Whether no more may wait."""
        return self._metrics.waiting >= self._most

    async def wait(
        self,
        key: LeaseKey,
        candidate: str,
        patience: float,
        outcome: Held,
        attempt: Callable[[], Awaitable[Granted | Held]],
        give_back: Callable[[], Awaitable[object]],
        receive: Receive,
    ) -> Granted | Held:
        """Try until the lease is granted, at most for ``patience`` seconds; the last outcome. ``give_back`` is called
        if it was granted to one that has gone meanwhile."""
        waiter = _Waiter(candidate)
        self._waiters.setdefault(key, {})[waiter] = None
        self._metrics.waiting += 1
        watching = asyncio.ensure_future(_watch(receive, waiter))
        end = self._monotonic() + patience
        try:
            while (left := end - self._monotonic()) > 0 and not waiter.gone:
                await self._pause(waiter, min(outcome.left + 0.001, left))
                if waiter.gone:
                    break
                waiter.news.clear()
                found = await attempt()
                if isinstance(found, Granted):
                    if not waiter.gone:
                        return found
                    await give_back()
                    break
                outcome = found
            return outcome
        finally:
            watching.cancel()
            self._metrics.waiting -= 1
            del self._waiters[key][waiter]
            if not self._waiters[key]:
                del self._waiters[key]

    async def _pause(self, waiter: _Waiter, most: float) -> None:
        # Not all of them look at the same moment, and the expiry itself is worth a look.
        try:
            await asyncio.wait_for(waiter.news.wait(), min(_LOOK_EVERY * random.uniform(0.8, 1.2), most))
        except TimeoutError:
            pass

    def leave(self, key: LeaseKey, candidate: str) -> None:
        """What this candidate still waits for it does not want any more."""
        for waiter in list(self._waiters.get(key, ())):
            if waiter.candidate == candidate:
                waiter.leave()

    def wake(self, key: LeaseKey) -> None:
        """The lease may be free: look at once."""
        for waiter in self._waiters.get(key, ()):
            waiter.news.set()

    def close(self) -> None:
        """Everybody is answered with what is known."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.leave()


async def _watch(receive: Receive, waiter: _Waiter) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    waiter.leave()
