"""One term: from a granted lock to its release.

A grant is not leadership: the tab must acknowledge it, the epoch must be durable, and the receiver must have seen it,
before the loop starts. Stepping down has one order: revoke the token, tell the loop, wait for it up to ``grace``,
release, announce. Others learn that nobody leads when the lock is free, not before: they would only ask in vain.
"""

from __future__ import annotations

import asyncio

from tabhelm.authority.base import Hold
from tabhelm.election import outranked, rank
from tabhelm.errors import LeadershipLost, TabhelmError
from tabhelm.leadership.announcing import announce
from tabhelm.leadership.beginning import acknowledged, begin
from tabhelm.leadership.candidacy import UNHEALTHY
from tabhelm.leadership.context import LeaderContext
from tabhelm.leadership.office import Office
from tabhelm.leadership.states import Leading, SteppingDown
from tabhelm.leadership.tenure import Tenure
from tabhelm.observe import LoopFailed, LoopOverran
from tabhelm.ports import Timer

_GRACELESS = frozenset({"frozen", "stalled", "closing"})
"""Lifecycles in which nothing runs. Callers may choose the same words: that takes no grace away."""
_GENERATION_CHANGED = "generation-changed"
VERIFY_AGAIN = 5.0
"""Seconds after which the store is asked again what it could not say: whoever claims our resource may say nothing
new."""


class Term:
    """``silent_for``: the lock was taken by force from a holder that had been silent for so many seconds."""

    def __init__(self, office: Office, hold: Hold, silent_for: float | None = None) -> None:
        self.led_for = 0.0
        """Seconds in which it led."""
        self.trouble: str | None = None
        """What kept it from beginning, in the error's own words."""
        self._office = office
        self._hold = hold
        self._silent_for = silent_for
        self._me = office.candidate.identity
        self._body: asyncio.Task[None] | None = None
        self._hold_limit: Timer | None = None
        self._began = 0.0
        self._stalled = False
        """Whether its loop made no progress for too long."""
        self._verified = 0
        """The highest epoch that others claimed, and that the store was asked about."""
        self._verify_from = 0.0
        """When it may be asked again, in monotonic time."""

    @property
    def loop(self) -> asyncio.Task[None] | None:
        """Its loop, once it was started."""
        return self._body

    @property
    def working(self) -> bool:
        """Whether its loop still runs, perhaps beyond the term."""
        return self._body is not None and not self._body.done()

    async def serve(self) -> str:
        """Begin, lead, and release; returns why it is over."""
        services = self._office.services
        self._hold.on_end(lambda _: self._office.changes.tell())
        # Our own other tabs know from now on that somebody's turn has begun.
        services.roster.signs.granted(self._office.key, services.clock.monotonic(), services.roster.engine_id)
        try:
            begun = await self._begin()
            return begun if isinstance(begun, str) else await self._lead(begun)
        finally:
            self._hold.release()
            services.roster.clear_leading(self._office.key, self._me.connection_id, services.clock.monotonic())

    async def _begin(self) -> Tenure | str:
        """Begin to lead, or why not: the grant is given back at once when leading is no longer wanted or allowed."""
        office = self._office
        beginning = office.services.tasks.start(self._try_to_begin(), f"begin {office.key}", supervised=False)
        await office.changes.follow(beginning, lambda: self._hindrance() is None)
        if beginning.cancelled():
            return self._hindrance() or "withdrawn"
        return self._failure(beginning) or self._hindrance() or beginning.result() or "not-acknowledged"

    def _failure(self, beginning: asyncio.Task[Tenure | None]) -> str | None:
        """Why it failed, in one word; ``None`` if it did not. What is no failure that we know is raised."""
        error = beginning.exception()
        if error is None:
            return None
        if isinstance(error, LeadershipLost):
            return error.reason
        if isinstance(error, TabhelmError):
            self.trouble = str(error)
            return error.code
        raise error

    async def _try_to_begin(self) -> Tenure | None:
        office, services = self._office, self._office.services
        if not await acknowledged(services.clock, office.policy.engine_patience, office.confirm()):
            return None
        return await begin(
            self._hold,
            office.key,
            office.policy,
            services.clock,
            services.http,
            services.events,
            self._silent_for,
        )

    def _hindrance(self) -> str | None:
        """Why a grant may not become leadership, or ``None``."""
        return self._office.barred() or self._office.resigning() or self._hold.lost

    async def _lead(self, tenure: Tenure) -> str:
        office, services = self._office, self._office.services
        began = self._began = services.clock.monotonic()
        context = LeaderContext(
            tenure, services.clock, services.tasks, office.step_down, health_every=office.policy.health_every
        )
        tenure.served = services.exchange.open(office.key, tenure, self._me.tab_id, self._me.connection_id)
        body = services.tasks.start(office.run_loop(context), f"loop {office.key}", supervised=False)
        body.add_done_callback(self._body_ended)
        self._body = body
        tenure.on_revoked(office.changes.tell)
        reason: str | None = None
        try:
            office.enter(Leading(tenure.epoch, services.clock.wall()))
            self._tell_others(tenure)
            self._limit_hold()
            while (reason := self._over(tenure, body)) is None:
                self._verify(tenure)
                await office.changes.wait(self._look_again(tenure))
        except LeadershipLost as lost:  # it ended between two looks
            reason = lost.reason
        finally:
            reason = reason or "closed"
            if self._hold_limit is not None:
                self._hold_limit.cancel()
            tenure.revoke(reason)
            body.cancel()
            if isinstance(office.status, Leading):
                office.enter(SteppingDown(reason, tenure.epoch))
        if self._hold.held and not self._stalled and not self._stands_still(reason):
            await self._await_body(body)
        self.led_for = services.clock.monotonic() - began
        return reason

    def _tell_others(self, tenure: Tenure) -> None:
        office = self._office
        announce(office.services.roster, tenure, self._me, self._began)
        office.leads(tenure.epoch)

    def _body_ended(self, body: asyncio.Task[None]) -> None:
        """Also of a loop that fails while it is stopping: nobody else would hear of it."""
        self._office.changes.tell()
        error = None if body.cancelled() else body.exception()
        if error is not None and not isinstance(error, LeadershipLost):
            self._office.services.events.emit(LoopFailed(self._office.key, f"{type(error).__name__}: {error}"))

    def _limit_hold(self) -> None:
        """Step down at the end of ``max_hold`` if another tab could lead; else look again after the same time."""
        limit = self._office.policy.max_hold
        self._hold_limit = None if limit is None else self._office.services.clock.call_later(limit, self._hold_ended)

    def _hold_ended(self) -> None:
        office = self._office
        me = office.candidate.identity.connection_id
        tabs = office.services.roster.tabs(office.services.clock.monotonic())
        if any(tab.connection_id != me for tab in rank(office.policy, office.key, tabs)):
            office.step_down("max-hold")
        else:
            self._limit_hold()

    def _over(self, tenure: Tenure, body: asyncio.Task[None]) -> str | None:
        """Why the term must end now, or ``None``."""
        office = self._office
        barred, resigning = office.barred(), office.resigning()
        if barred is not None and (resigning is None or self._stands_still(barred)):
            return barred
        if office.candidate.identity != self._me:
            return _GENERATION_CHANGED
        if resigning == UNHEALTHY:
            return resigning  # also if its loop fails of the same trouble: its tab shall rest
        if body.done():
            return _outcome(body)
        reason = tenure.ended or resigning
        if reason is None and self._due(office.policy.stall_after, tenure.progress_at):
            self._stalled = True
            return "stalled"
        return "outranked" if reason is None and self._due(office.policy.cool_down) and self._outranked() else reason

    def _stands_still(self, reason: str) -> bool:
        """Whether this reason is the tab's lifecycle, and one in which nothing runs."""
        return reason in _GRACELESS and reason == self._office.candidate.info().lifecycle

    def _due(self, after: float | None, since: float | None = None) -> bool:
        """Whether so many seconds have passed since then; from the beginning of the term at the latest."""
        return after is not None and self._left(after, since) <= 0

    def _left(self, after: float, since: float | None = None) -> float:
        return (self._began if since is None else since) + after - self._office.services.clock.monotonic()

    def _look_again(self, tenure: Tenure) -> float | None:
        """Seconds after which the term may be over though nothing changed; ``None``: never."""
        policy = self._office.policy
        times = [] if policy.stall_after is None else [self._left(policy.stall_after, tenure.progress_at)]
        if not self._due(policy.cool_down) and self._outranked():
            times.append(self._left(policy.cool_down))
        if (unverified := self._left(0.0, self._verify_from)) > 0:
            times.append(unverified)
        return max(0.0, min(times)) if times else None

    def _outranked(self) -> bool:
        """Whether a tab that the policy prefers would lead next."""
        policy, services = self._office.policy, self._office.services
        if policy.visible != "prefer" and not policy.prefers:
            return False
        tabs = services.roster.tabs(services.clock.monotonic())
        return outranked(policy, self._office.key, self._office.candidate.info(), tabs)

    def _verify(self, tenure: Tenure) -> None:
        """Somebody says that it leads with a higher epoch: ask the store, which knows; a beacon may be anybody's."""
        if tenure.epoch is None:
            return
        roster, clock = self._office.services.roster, self._office.services.clock
        domain = tenure.grant.domain
        heard = max(
            (info.epoch for info in roster.leaders_of(self._office.key, clock.monotonic()) if info.domain == domain),
            default=0,
        )
        if heard > max(tenure.epoch, self._verified) and clock.monotonic() >= self._verify_from:
            self._verified = heard
            self._office.services.tasks.start(self._ask_the_store(tenure), f"verify {self._office.key}")

    async def _ask_the_store(self, tenure: Tenure) -> None:
        try:
            await tenure.check()  # revokes the tenure if somebody else leads
        except LeadershipLost:
            pass
        except TabhelmError:
            self._verified = 0  # nothing is known
            self._verify_from = self._office.services.clock.monotonic() + VERIFY_AGAIN
            self._office.changes.tell()

    async def _await_body(self, body: asyncio.Task[None]) -> None:
        office, clock = self._office, self._office.services.clock
        deadline = clock.monotonic() + office.policy.grace
        while not body.done() and (left := deadline - clock.monotonic()) > 0:
            await office.changes.wait(left)
        if not body.done():
            body.cancel()
            office.services.events.emit(LoopOverran(office.key, office.policy.grace * 1000))


def _outcome(body: asyncio.Task[None]) -> str:
    if body.cancelled():
        return "loop-cancelled"
    error = body.exception()
    if error is None:
        return "loop-finished"
    return error.reason if isinstance(error, LeadershipLost) else "loop-failed"
