"""One tab's election for one resource: ask, be granted, begin, lead, step down, ask again.

Acquisition decides, ranking only says who should ask (``line``): the best candidate keeps a queued request (warm
standby), the others watch. A standby that waits behind a holder without any sign of life takes over by force
(``standby``, ``silence``). What a grant comes to is its ``Term``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tabhelm.election import NO_FAILURE, Backoff, LeadershipPolicy
from tabhelm.errors import ElectionStopped, LockWithdrawn, NoAuthority, TabhelmError
from tabhelm.leadership.asking import TIMEOUT
from tabhelm.leadership.candidacy import UNHEALTHY, Candidacy
from tabhelm.leadership.changes import Changes
from tabhelm.leadership.context import LeaderContext
from tabhelm.leadership.line import Line
from tabhelm.leadership.office import Candidate, ElectionServices, LeaderLoop
from tabhelm.leadership.publishing import PublishedState
from tabhelm.leadership.questions import ask
from tabhelm.leadership.standby import Standby
from tabhelm.leadership.states import (
    BackingOff,
    Idle,
    Leading,
    State,
    SteppingDown,
    Stopped,
    Waiting,
    check_transition,
    name_of,
)
from tabhelm.leadership.term import Term
from tabhelm.listeners import Listeners
from tabhelm.names import Resource
from tabhelm.observe import LeadershipChanged
from tabhelm.ports import Timer
from tabhelm.presence import LeaderInfo

__all__ = ["Barred", "Candidate", "Election", "ElectionServices", "LeaderLoop"]

Barred = Callable[[], str | None]
"""Why its tab may not lead just now, beyond what the policy says: one short word; ``None`` if it may. Asked at every
look, so it must be quick; whoever changes the answer calls ``Election.look``."""


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
        self.key = resource.token_resource
        self.policy = policy
        self.candidate = candidate
        self.services = services
        self.changes = Changes(services.clock)
        self.status: State = Idle("starting")
        self.candidacy = Candidacy(self.key, policy, candidate, services, barred, lambda: self._overrun)
        self._loop = loop
        self._authority = services.authorities.choice(policy.authorities, resource, policy.lease, policy.lease_headers)
        self._line = Line(self.key, policy, candidate, services)
        self._standby = Standby(self, resource, self._authority, self._line)
        self._news: Timer | None = None
        self._stop: str | None = None
        self._resign: str | None = None
        self._term: Term | None = None
        self._backoff = Backoff(services.entropy, policy.backoff, policy.max_backoff)
        self._listeners: Listeners[[State]] = Listeners(f"subscriber of election {self.key}", services.events.failed)
        self._unsubscribe = services.roster.follow(self.key, self._heard_news)
        self._unwatch = services.storage_lost.add(self._storage_lost)
        self._follower = services.exchange.publishing.follow(self.key)
        self._task = services.tasks.start(self._run(), f"election {self.key}")

    # -- for the owner ------------------------------------------------------------------------------------------------

    def leader(self) -> LeaderInfo | None:
        """Who is said to lead: a hint."""
        return self.services.roster.leader(self.key, self.services.clock.monotonic())

    async def ask(
        self, method: str, args: Any = None, *, timeout: float = TIMEOUT, idempotency_key: str | None = None
    ) -> Any:
        """Ask whoever leads, from any tab that stands, leading or not; returns what its handler returns.

        While nobody leads it waits for the next leader. ``timeout`` is in seconds. Cancelling it stops the waiting, not
        a handler that has begun. ``idempotency_key``: for the handler; one is drawn if none is given.

        Raises:
            NoLeader: nobody led in time; nothing happened.
            LeaderChanged: the leader that was asked leads no more; ``outcome`` says whether it may have acted.
            AskTimeout: it leads, but did not answer in time; it may have acted.
            HandlerFailed: the handler raised.
            AskRefused: the handler refused.
            NoHandler: the leader serves no such method.
            NotCloneable: ``args`` cannot go to another tab; nothing was sent.
            TooManyCalls: too many questions are open.
            ElectionStopped: this election is over.
            ValueError: the method or the timeout is not valid.
        """
        return await ask(self.services.exchange, self, method, args, timeout, idempotency_key)

    @property
    def state(self) -> PublishedState | None:
        """What the leader published last; ``None`` before anything was."""
        return self._follower.state

    def on_state(self, callback: Callable[[PublishedState], None]) -> Callable[[], None]:
        """Call back at every change of ``state``; returns the way to stop."""
        return self._follower.subscribe(callback)

    def look(self) -> None:
        """The tab changed (lifecycle, visibility, network, capabilities, whatever ``eligible`` and ``score`` depend
        on): act on it at once."""
        self.candidacy.look()
        self.changes.tell()

    def page_says(self, unfit: str | None, score: float) -> None:
        """What the page's own functions say of its candidacy: why it may not lead, if so, and how good it would be."""
        self.candidacy.page_says(unfit, score)
        self.changes.tell()

    def step_down(self, reason: str = "step-down") -> None:
        """Give leadership up, if held, and go on taking part."""
        if isinstance(self.status, (Leading, Waiting)):
            self._resign = reason
            self.changes.tell()

    def claim(self, silent_for: float) -> bool:
        """The holder of the lock is known to hang: take over at once. True if this election will.

        Only one that waits does, and only under a policy that allows takeovers. ``silent_for`` is in seconds. A sign of
        life before the lock is taken, of this holder or of the next one, ends the claim.
        """
        if not isinstance(self.status, Waiting) or not self._standby.claim(silent_for):
            return False
        self.changes.tell()
        return True

    def stop(self, reason: str = "stopped") -> None:
        """Step down and take part no more."""
        if self._stop is None:
            self._stop = reason
            self.changes.tell()

    async def stopped(self) -> Stopped:
        """Wait until it is over."""
        return await self.wait_for(Stopped)  # type: ignore[return-value]

    async def wait_for(self, *states: type[State]) -> State:
        """Wait until the status is one of ``states`` and return it.

        Raises:
            ElectionStopped: it is over (``stop()``, the tab left), so that none of them will come.
            NoAuthority: nothing on the policy's list can decide here. The election asks again from time to time.
        """
        reached: asyncio.Future[State] = asyncio.get_running_loop().create_future()

        def watch(state: State) -> None:
            if reached.done():
                return
            if isinstance(state, states):
                reached.set_result(state)
            elif isinstance(state, Stopped):
                reached.set_exception(ElectionStopped(self.key, state.error or state.reason))
            elif isinstance(state, BackingOff) and state.reason == NoAuthority.code and self._authority.missing:
                reached.set_exception(NoAuthority(self._authority.missing))

        watch(self.status)

        unsubscribe = self.subscribe(watch)
        try:
            return await reached
        finally:
            unsubscribe()

    def subscribe(self, subscriber: Callable[[State], None]) -> Callable[[], None]:
        """Call back at every change of ``status``; returns the way to stop."""
        return self._listeners.add(subscriber)

    @property
    def loop(self) -> asyncio.Task[None] | None:
        """The loop that was started last; it may outlive the tenure, and the election."""
        return self._term.loop if self._term is not None else None

    # -- for its term (``Office``) ------------------------------------------------------------------------------------

    async def run_loop(self, context: LeaderContext) -> None:
        """The leader's own work."""
        await self._loop(context)

    async def confirm(self) -> bool:
        """Whether the tab can work now."""
        return await self.candidate.confirm(self)

    def barred(self) -> str | None:
        """Why nothing may go on: stopped, or the tab may not lead now."""
        return self._stop or self.candidacy.unfit()

    def resigning(self) -> str | None:
        """Why leadership is to be given up, if it is."""
        return self._resign

    def leads(self, epoch: int | None) -> None:
        """Leadership has begun."""
        self.candidacy.leads(epoch)

    def enter(self, state: State) -> None:
        """Change the status, and tell."""
        if state == self.status:
            return
        check_transition(self.status, state)
        before, after = name_of(self.status), name_of(state)
        self.status = state
        info = self.candidate.info()
        reason = str(getattr(state, "reason", "granted" if isinstance(state, Leading) else "eligible"))
        epoch, detail = getattr(state, "epoch", None), getattr(state, "detail", None)
        self.services.events.emit(
            LeadershipChanged(self.key, info.tab_id, before, after, reason, epoch, info.lifecycle, info.visible, detail)
        )
        self._listeners.tell(state)

    # -- the run ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        error: str | None = None
        self.candidacy.look()
        try:
            while self._stop is None:
                await self._round()
        except Exception as fault:
            self._stop, error = "internal-error", f"{type(fault).__name__}: {fault}"
            raise
        finally:
            self._unsubscribe()
            self._unwatch()
            self._line.leave()
            if self._news is not None:
                self._news.cancel()
            self.enter(Stopped(self._stop or "closed", error))
            self.services.exchange.publishing.unfollow(self._follower)

    async def _round(self) -> None:
        if (reason := self.candidacy.unfit()) is not None:
            await self._idle(reason)
            return
        if self._resign is not None:
            await self._back_off(self._resign)
            return
        if (left := self.candidacy.resting()) > 0:
            if not isinstance(self.status, BackingOff):  # it was not fit to lead for a while of its rest
                self.enter(BackingOff(UNHEALTHY, left))
            await self.changes.wait(left)
            return
        place = self._line.place()
        patience = self._standby.patience(place)
        if patience is None or patience > 0:
            self.enter(Waiting(False, place))
            await self.changes.wait(patience)
            return
        self.enter(Waiting(True, place))
        try:
            term = await self._standby.term()
        except TabhelmError as failure:
            withdrawn = isinstance(failure, LockWithdrawn)
            await self._back_off("withdrawn" if withdrawn else failure.code, None if withdrawn else str(failure))
            return
        if term is not None:
            await self._serve(term)

    async def _serve(self, term: Term) -> None:
        self._term = term
        reason = await term.serve()
        if term.led_for > self.policy.max_backoff:
            self._backoff.reset()  # it led well for a while: what ended it is no repeated failure
        if self.barred() is None or (self._resigned_unhealthy(reason) and self._stop is None):
            await self._back_off(reason, term.trouble)

    async def _idle(self, reason: str) -> None:
        self._resign = None
        self._standby.drop_claim()
        self.enter(Idle(reason))
        await self.changes.wait()

    def _storage_lost(self, reason: str) -> None:
        """The database forgot our epoch, or is to be given up. A lease that is kept there writes itself back, or ends
        by itself; what is kept elsewhere is not concerned."""
        guarantees = self._authority.guarantees
        if guarantees.fenced and not guarantees.timeout_based:
            self.step_down(reason)

    @property
    def _overrun(self) -> bool:
        """Whether a loop still runs, beyond its term."""
        return self._term is not None and self._term.working and not isinstance(self.status, (Leading, SteppingDown))

    def _resigned_unhealthy(self, reason: str) -> bool:
        """Not if its ``eligible`` chose the same word: that one says by itself when it is over."""
        return reason == UNHEALTHY == self._resign

    async def _back_off(self, reason: str, detail: str | None = None) -> None:
        unhealthy = self._resigned_unhealthy(reason)
        if not unhealthy and (reason in NO_FAILURE or reason == self._resign):
            self._backoff.reset()  # a short pause is enough
        delay = self._backoff.next()
        self._resign = None
        self._standby.drop_claim()
        if unhealthy:
            self.candidacy.rest(delay)
            self.enter(BackingOff(reason, self.candidacy.resting()))
            return
        self.enter(BackingOff(reason, delay, detail))
        until = self.services.clock.monotonic() + delay
        while self._stop is None and (left := until - self.services.clock.monotonic()) > 0:
            await self.changes.wait(left)

    # -- news ---------------------------------------------------------------------------------------------------------

    def _heard_news(self) -> None:
        if self._news is None:
            delay = self.services.entropy.uniform(*self.policy.trigger_window)
            self._news = self.services.clock.call_later(delay, self._act_on_news)

    def _act_on_news(self) -> None:
        self._news = None
        self.changes.tell()
