"""One tab's election for one resource: ask, be granted, begin, lead, step down, ask again.

Acquisition decides, ranking only says who should ask: the best candidate keeps a queued request (warm standby), the
others watch, and ask too if no leader has been seen for a while that grows with their rank. A grant is not leadership:
the tab must acknowledge it, the epoch must be durable, and the receiver must have seen it, before the loop starts.

Stepping down has one order: revoke the token, tell the loop, wait for it up to ``grace``, release, announce.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tabhelm.authority.base import Authority, Hold
from tabhelm.election import NO_FAILURE, Backoff, LeadershipPolicy, ineligible, rank
from tabhelm.errors import LeadershipLost, LockWithdrawn, TabhelmError
from tabhelm.leadership.beginning import acknowledged, begin
from tabhelm.leadership.context import LeaderContext
from tabhelm.leadership.states import (
    TRANSITIONS,
    BackingOff,
    Idle,
    Leading,
    State,
    SteppingDown,
    Stopped,
    Waiting,
    name_of,
)
from tabhelm.leadership.tenure import Tenure
from tabhelm.messages import LeaderNote
from tabhelm.names import Resource
from tabhelm.observe import Events, LeadershipChanged, LoopFailed, LoopOverran
from tabhelm.ports import Clock, Entropy, Http, Timer
from tabhelm.presence import Identity, LeaderInfo, Roster, TabInfo
from tabhelm.tasks import Tasks

T = TypeVar("T")
LeaderLoop = Callable[[LeaderContext], Awaitable[None]]
Barred = Callable[[], str | None]
"""Why its tab may not lead just now, beyond what the policy says: one short word; ``None`` if it may. Asked at every
look, so it must be quick; whoever changes the answer calls ``Election.look``."""

STAGGER = 0.25
"""Seconds without a leader, times rank, after which a tab that is not the best candidate asks too."""
_GRACELESS = frozenset({"frozen", "stalled", "closing"})


class Candidate(Protocol):
    """The tab that stands."""

    @property
    def identity(self) -> Identity: ...

    def info(self) -> TabInfo:
        """How the tab is now."""

    async def confirm(self, election: Election) -> bool:
        """Whether the tab can work now (a page acknowledges its grant). Bounded by the policy's ``engine_patience``."""


@dataclass(frozen=True, slots=True)
class ElectionServices:
    """What all elections of one engine share."""

    clock: Clock
    entropy: Entropy
    roster: Roster
    authority: Authority
    events: Events
    tasks: Tasks
    http: Http


class Election:
    """Runs until it is stopped. ``status`` is the state now; ``subscribe`` tells every change."""

    def __init__(
        self,
        resource: Resource,
        loop: LeaderLoop,
        policy: LeadershipPolicy,
        candidate: Candidate,
        services: ElectionServices,
        barred: Barred = lambda: None,
    ) -> None:
        self.resource = resource
        self.policy = policy
        self.status: State = Idle("starting")
        self._loop = loop
        self._candidate = candidate
        self._services = services
        self._barred = barred
        self._key = resource.token_resource
        self._wake = asyncio.Event()
        self._news: Timer | None = None
        self._stop: str | None = None
        self._resign: str | None = None
        self._hold_limit: Timer | None = None
        self._leaderless_since: float | None = None
        self._body: asyncio.Task[None] | None = None
        self._backoff = Backoff(services.entropy, policy.backoff, policy.max_backoff)
        self._subscribers: list[Callable[[State], None]] = []
        self._unsubscribe = services.roster.subscribe(self._heard_news)
        self._task = services.tasks.start(self._run(), f"election {self._key}")

    # -- for the owner ------------------------------------------------------------------------------------------------

    def leader(self) -> LeaderInfo | None:
        """Who is said to lead: a hint."""
        return self._services.roster.leader(self._key, self._services.clock.monotonic())

    def look(self) -> None:
        """The tab changed (lifecycle, visibility, network, capabilities): act on it at once."""
        self._wake.set()

    def step_down(self, reason: str = "step-down") -> None:
        """Give leadership up, if held, and go on taking part."""
        if isinstance(self.status, (Leading, Waiting)):
            self._resign = reason
            self._wake.set()

    def stop(self, reason: str = "stopped") -> None:
        """Step down and take part no more."""
        if self._stop is None:
            self._stop = reason
            self._wake.set()

    async def stopped(self) -> Stopped:
        """Wait until it is over."""
        return await self.wait_for(Stopped)  # type: ignore[return-value]

    async def wait_for(self, *states: type[State]) -> State:
        """Wait until the status is one of ``states`` and return it."""
        if isinstance(self.status, states):
            return self.status
        reached: asyncio.Future[State] = asyncio.get_running_loop().create_future()

        def watch(state: State) -> None:
            if isinstance(state, states) and not reached.done():
                reached.set_result(state)

        unsubscribe = self.subscribe(watch)
        try:
            return await reached
        finally:
            unsubscribe()

    def subscribe(self, subscriber: Callable[[State], None]) -> Callable[[], None]:
        """Call back at every change of ``status``; returns the way to stop."""
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    # -- the run ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        error: str | None = None
        try:
            while self._stop is None:
                await self._round()
        except Exception as fault:
            self._stop, error = "internal-error", f"{type(fault).__name__}: {fault}"
            raise
        finally:
            self._unsubscribe()
            if self._news is not None:
                self._news.cancel()
            self._enter(Stopped(self._stop or "closed", error))

    async def _round(self) -> None:
        if self._body is not None and not self._body.done():
            await self._idle("loop-still-running")  # it overran its grace; two bodies at once would be worse than none
            return
        if (reason := self._unfit()) is not None:
            await self._idle(reason)
            return
        if self._resign is not None:
            await self._back_off(self._resign)
            return
        place = self._place()
        patience = self._patience(place)
        if patience is None or patience > 0:
            self._enter(Waiting(False, place))
            await self._change(patience)
            return
        self._enter(Waiting(True, place))
        try:
            hold = await self._acquire()
        except TabhelmError as failure:
            await self._back_off("withdrawn" if isinstance(failure, LockWithdrawn) else failure.code)
            return
        if hold is not None:
            try:
                await self._serve(hold)
            finally:
                hold.release()

    async def _idle(self, reason: str) -> None:
        self._resign = None
        self._enter(Idle(reason))
        await self._change()

    def _unfit(self) -> str | None:
        """Why this tab may not lead now; ``None`` if it may."""
        return ineligible(self.policy, self._candidate.info()) or self._barred()

    def _place(self) -> int:
        now = self._services.clock.monotonic()
        leader = self._services.roster.leader(self._key, now)
        if leader is not None:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = now
        order = rank(self.policy, self._key, self._services.roster.tabs(now))
        connections = [
            tab.connection_id for tab in order if leader is None or tab.connection_id != leader.connection_id
        ]
        me = self._candidate.identity.connection_id
        return connections.index(me) if me in connections else len(connections)

    def _patience(self, place: int) -> float | None:
        """Seconds until this tab may ask: 0 now, ``None`` while another tab leads and a better one stands by."""
        if place == 0:
            return 0.0
        if self._leaderless_since is None:
            return None
        return max(0.0, self._leaderless_since + STAGGER * place - self._services.clock.monotonic())

    async def _acquire(self) -> Hold | None:
        identity = self._candidate.identity
        asking = self._services.tasks.start(
            self._services.authority.acquire(self.resource, owner=identity.connection_id, owner_id=identity.owner_id),
            f"acquire {self._key}",
            supervised=False,
        )
        try:
            await self._follow(asking, self._still_asks)
        except asyncio.CancelledError:
            if not asking.cancelled() and asking.exception() is None:
                asking.result().release()
            raise
        return None if asking.cancelled() else asking.result()

    async def _follow(self, task: asyncio.Task[T], goes_on: Callable[[], bool]) -> None:
        """Wait until ``task`` has ended; cancel it as soon as it should not go on, and when we are cancelled."""
        task.add_done_callback(lambda _: self._wake.set())
        try:
            while not task.done():
                if goes_on():
                    await self._change()
                else:
                    task.cancel()
                    await _settled(task)
        except asyncio.CancelledError:
            task.cancel()
            await _settled(task)
            raise

    def _still_asks(self) -> bool:
        if self._stop is not None or self._resign is not None:
            return False
        if self._unfit() is not None:
            return False
        place = self._place()
        if place != getattr(self.status, "rank", place):
            self._enter(Waiting(True, place))
        return self._patience(place) is not None

    async def _serve(self, hold: Hold) -> None:
        hold.on_end(lambda _: self._wake.set())
        begun = await self._begin(hold)
        reason = begun if isinstance(begun, str) else await self._lead(hold, begun)
        hold.release()
        if self._stop is None and self._unfit() is None:
            await self._back_off(reason)

    async def _begin(self, hold: Hold) -> Tenure | str:
        """Begin to lead, or why not: the grant is given back at once when leading is no longer wanted or allowed."""
        beginning = self._services.tasks.start(self._try_to_begin(hold), f"begin {self._key}", supervised=False)
        await self._follow(beginning, lambda: self._hindrance(hold) is None)
        if beginning.cancelled():
            return self._hindrance(hold) or "withdrawn"
        return _failure(beginning) or self._hindrance(hold) or beginning.result() or "not-acknowledged"

    async def _try_to_begin(self, hold: Hold) -> Tenure | None:
        services = self._services
        confirming = self._candidate.confirm(self)
        if not await acknowledged(services.clock, self.policy.engine_patience, confirming):
            return None
        return await begin(hold, self._key, self.policy.fence, services.clock, services.http, services.events)

    def _hindrance(self, hold: Hold) -> str | None:
        """Why a grant may not become leadership, or ``None``."""
        return self._stop or self._unfit() or self._resign or (None if hold.held else "lock-lost")

    async def _lead(self, hold: Hold, tenure: Tenure) -> str:
        services, me = self._services, self._candidate.identity
        began = services.clock.monotonic()
        body = services.tasks.start(self._call(tenure), f"loop {self._key}", supervised=False)
        body.add_done_callback(self._body_ended)
        self._body = body
        tenure.on_revoked(self._wake.set)
        reason: str | None = None
        try:
            self._enter(Leading(tenure.epoch, services.clock.wall()))
            grant = tenure.grant if tenure.epoch is not None else None
            domain, epoch = (grant.domain, grant.epoch) if grant else ("", 0)
            services.roster.set_leading(LeaderNote(self._key, me.tab_id, me.connection_id, domain, epoch, 0.0), began)
            self._limit_hold()
            while (reason := self._over(tenure, body)) is None:
                await self._change()
        finally:
            reason = reason or "closed"
            if self._hold_limit is not None:
                self._hold_limit.cancel()
            tenure.revoke(reason)
            body.cancel()
            self._enter(SteppingDown(reason, tenure.epoch))
            services.roster.clear_leading(self._key, me.connection_id)
        if hold.held and reason not in _GRACELESS:
            await self._await_body(body)
        hold.release()
        if services.clock.monotonic() - began > self.policy.max_backoff:
            self._backoff.reset()  # it led well for a while: what ended it is no repeated failure
        return reason

    async def _call(self, tenure: Tenure) -> None:
        await self._loop(LeaderContext(tenure, self._services.clock))

    def _body_ended(self, body: asyncio.Task[None]) -> None:
        """Also of a loop that fails while it is stopping: nobody else would hear of it."""
        self._wake.set()
        error = None if body.cancelled() else body.exception()
        if error is not None and not isinstance(error, LeadershipLost):
            self._services.events.emit(LoopFailed(self._key, f"{type(error).__name__}: {error}"))

    def _limit_hold(self) -> None:
        """Step down at the end of ``max_hold`` if another tab could lead; else look again after the same time."""
        limit = self.policy.max_hold
        self._hold_limit = None if limit is None else self._services.clock.call_later(limit, self._hold_ended)

    def _hold_ended(self) -> None:
        me = self._candidate.identity.connection_id
        tabs = self._services.roster.tabs(self._services.clock.monotonic())
        if any(tab.connection_id != me for tab in rank(self.policy, self._key, tabs)):
            self.step_down("max-hold")
        else:
            self._limit_hold()

    def _over(self, tenure: Tenure, body: asyncio.Task[None]) -> str | None:
        """Why the tenure must end now, or ``None``."""
        if self._stop is not None:
            return self._stop
        if (reason := self._unfit()) is not None:
            return reason
        if body.done():
            return self._outcome(body)
        return tenure.ended or self._resign

    def _outcome(self, body: asyncio.Task[None]) -> str:
        if body.cancelled():
            return "loop-cancelled"
        error = body.exception()
        if error is None:
            return "loop-finished"
        return error.reason if isinstance(error, LeadershipLost) else "loop-failed"

    async def _await_body(self, body: asyncio.Task[None]) -> None:
        deadline = self._services.clock.monotonic() + self.policy.grace
        while not body.done() and (left := deadline - self._services.clock.monotonic()) > 0:
            await self._change(left)
        if not body.done():
            body.cancel()
            self._services.events.emit(LoopOverran(self._key, self.policy.grace))

    async def _back_off(self, reason: str) -> None:
        if reason in NO_FAILURE or reason == self._resign:
            self._backoff.reset()  # a short pause is enough
        delay = self._backoff.next()
        self._resign = None
        self._enter(BackingOff(reason, delay))
        until = self._services.clock.monotonic() + delay
        while self._stop is None and (left := until - self._services.clock.monotonic()) > 0:
            await self._change(left)

    # -- waiting and telling ------------------------------------------------------------------------------------------

    async def _change(self, timeout: float | None = None) -> None:
        """Wait until something changed, or for ``timeout`` seconds."""
        timer = self._services.clock.call_later(timeout, self._wake.set) if timeout is not None else None
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._wake.clear()

    def _heard_news(self) -> None:
        if self._news is None:
            delay = self._services.entropy.uniform(*self.policy.trigger_window)
            self._news = self._services.clock.call_later(delay, self._act_on_news)

    def _act_on_news(self) -> None:
        self._news = None
        self._wake.set()

    def _enter(self, state: State) -> None:
        if state == self.status:
            return
        before, after = name_of(self.status), name_of(state)
        assert after in TRANSITIONS[before], f"{before} -> {after} is no transition"
        self.status = state
        info = self._candidate.info()
        reason = str(getattr(state, "reason", "granted" if isinstance(state, Leading) else "eligible"))
        epoch = getattr(state, "epoch", None)
        self._services.events.emit(
            LeadershipChanged(self._key, info.tab_id, before, after, reason, epoch, info.lifecycle, info.visible)
        )
        for subscriber in list(self._subscribers):
            try:
                subscriber(state)
            except Exception as error:  # dropped: watching must not break what is watched
                self._subscribers.remove(subscriber)
                self._services.events.failed(f"subscriber of election {self._key}", error)


def _failure(beginning: asyncio.Task[Tenure | None]) -> str | None:
    """Why it failed, in one word; ``None`` if it did not. What is no failure that we know is raised."""
    error = beginning.exception()
    if error is None:
        return None
    if isinstance(error, LeadershipLost):
        return error.reason
    if isinstance(error, TabhelmError):
        return error.code
    raise error


async def _settled(task: asyncio.Task[T]) -> None:
    """Wait for a task that was just cancelled, without raising its outcome."""
    await asyncio.gather(task, return_exceptions=True)
