"""From a grant to leadership: the tab acknowledges, the epoch becomes durable, the receiver sees it."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from tabhelm import app_headers
from tabhelm.authority.base import Hold
from tabhelm.election import LeadershipPolicy
from tabhelm.errors import DatabaseBlocked, NotFenced
from tabhelm.leadership.barrier import TIMEOUT, raise_marks
from tabhelm.leadership.tenure import Tenure
from tabhelm.observe import EpochIssued, Events, TookOver
from tabhelm.ports import Clock, Http
from tabhelm.tasks import within

EPOCH_LIMIT = 10.0
"""Seconds that the epoch's transaction may take. A database that hangs must not keep the lock from everybody else."""
BARRIER_STREAM = "barrier"


async def acknowledged(clock: Clock, patience: float, confirming: Coroutine[Any, Any, bool]) -> bool:
    """Whether the tab says within ``patience`` seconds that it can work."""
    try:
        return await within(clock, patience, confirming)
    except TimeoutError:
        return False


async def begin(
    hold: Hold,
    resource: str,
    policy: LeadershipPolicy,
    clock: Clock,
    http: Http,
    events: Events,
    silent_for: float | None = None,
) -> Tenure:
    """Issue the epoch of a hold, and show it to the policy's receiver (``fence``) if there is one.

    ``silent_for``: the hold was taken by force from a holder that had been silent for so many seconds.

    Raises:
        LeadershipLost: somebody else leads by now.
        DatabaseError: the epoch could not be made durable (``DatabaseBlocked``: not within ``EPOCH_LIMIT``).
        Unreachable: the receiver did not take the barrier.
        NoHeaders: the app's own headers for it could not be had.
        NotFenced: there is a receiver, but no epoch to show it.
    """
    try:
        grant = await within(clock, EPOCH_LIMIT, hold.begin())
    except TimeoutError:
        raise DatabaseBlocked(f"the epoch of {resource!r} was not durable within {EPOCH_LIMIT:g} s") from None
    fence = policy.fence
    if grant is None and fence is not None:
        raise NotFenced(f"the authority of {resource!r} issues no epochs: the receiver {fence} could refuse nobody")
    tenure = Tenure(resource, hold, grant)
    if grant is not None:
        events.emit(EpochIssued(grant.resource, grant.domain, grant.epoch, grant.owner_id, grant.authority))
        if silent_for is not None:
            events.emit(TookOver(grant.resource, grant.epoch, round(silent_for * 1000)))
        if fence is not None:

            async def more() -> Mapping[str, str]:
                return await app_headers.ask(policy.fence_headers, clock, TIMEOUT, "fence_headers")

            await raise_marks(http, fence, tenure, tenure.stream(BARRIER_STREAM), events, more)
    return tenure
