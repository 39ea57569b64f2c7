"""What leases are made with: how long they hold, and what every one of a context shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tabhelm.errors import DatabaseBlocked, InvalidPolicy
from tabhelm.fencing.epochs import EpochIssuer
from tabhelm.fencing.leases import LONGEST_LEASE
from tabhelm.ports import Clock, Database, Locks
from tabhelm.tasks import Tasks, within

if TYPE_CHECKING:
    from tabhelm.authority.lease_hold import LeaseHold

T = TypeVar("T")
_LIMIT = 10.0
"""Seconds that one look or claim may take: a store that hangs is a failure, and must be seen as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """In seconds.

    Raises:
        InvalidPolicy: not ``lease`` > ``renew_deadline`` > ``renew_every`` > ``retry`` > 0, ``look_every`` is not
            between 0 and ``renew_every``, or those of hidden pages are shorter, or none.
    """

    lease: float = 15.0
    """So long others see a lease unchanged before they take it."""
    renew_deadline: float = 10.0
    """So long after the beginning of its last good renewal the holder believes in it. What is left of the lease is for
    clocks that run at different speeds."""
    renew_every: float = 5.0
    retry: float = 1.0
    """Pause after a failed renewal."""
    look_every: float = 2.0
    """Pause between two looks of those who wait."""
    hidden_lease: float = 200.0
    """``lease`` while its holder runs in a hidden page, whose timers the browser may hold back to one a minute."""
    hidden_deadline: float = 130.0
    """``renew_deadline`` there: time for two attempts."""

    def __post_init__(self) -> None:
        if not self.lease > self.renew_deadline > self.renew_every > self.retry > 0:
            raise InvalidPolicy(
                f"lease {self.lease:g} s > renew_deadline {self.renew_deadline:g} s > renew_every "
                f"{self.renew_every:g} s > retry {self.retry:g} s > 0 is expected"
            )
        if not 0 < self.look_every <= self.renew_every:
            raise InvalidPolicy(
                f"look_every {self.look_every:g} s is not valid: up to renew_every {self.renew_every:g} s is expected"
            )
        if not LONGEST_LEASE >= self.hidden_lease > self.hidden_deadline >= self.renew_deadline:
            raise InvalidPolicy(
                f"{LONGEST_LEASE:g} s >= hidden_lease {self.hidden_lease:g} s > hidden_deadline "
                f"{self.hidden_deadline:g} s >= renew_deadline {self.renew_deadline:g} s is expected"
            )

    def length(self, hidden: bool) -> float:
        """So long others see it unchanged before they take it."""
        return self.hidden_lease if hidden else self.lease

    def deadline(self, hidden: bool) -> float:
        """So long its holder believes in it."""
        return self.hidden_deadline if hidden else self.renew_deadline


@dataclass(frozen=True, slots=True)
class LeaseTools:
    """What all leases of one context are made with."""

    database: Database
    issuer: EpochIssuer
    locks: Locks
    clock: Clock
    tasks: Tasks
    times: LeaseTimes
    hidden: Callable[[], bool]
    """Whether our timers may be held back now."""
    giving_up: dict[asyncio.Task[None], None] = field(default_factory=dict)
    holds: dict[LeaseHold, None] = field(default_factory=dict)
    """Those that have not ended."""


async def in_time(clock: Clock, asking: Coroutine[Any, Any, T], failure: str) -> T:
    """What the store answers.

    Raises:
        DatabaseBlocked: it did not in time.
    """
    try:
        return await within(clock, _LIMIT, asking)
    except TimeoutError:
        raise DatabaseBlocked(f"{failure} within {_LIMIT:g} s") from None
