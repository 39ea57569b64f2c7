"""One joined tab: its identity, and the services of the rooms below, ready to use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Never, TypeVar

from tabhelm.election import LeadershipPolicy
from tabhelm.errors import InvalidName, NotJoined
from tabhelm.leadership import Election, LeaderLoop
from tabhelm.leadership.standing import Standing, check_lead
from tabhelm.locking import LockRequest, TabFlights, TabLocks, Who
from tabhelm.messages import TabNote
from tabhelm.names import QUEUE_RESOURCE, Resource
from tabhelm.observe import Metrics, Reign, TabJoined, TabLeft
from tabhelm.observe.history import KEEP
from tabhelm.ports import PageState
from tabhelm.presence import Identity, TabFacts, TabInfo
from tabhelm.queue import Queue
from tabhelm.queue.options import QueueOptions, options_from
from tabhelm.queue.tab_queues import QueueLoop, TabQueues
from tabhelm.services import Services

T = TypeVar("T")

__all__ = ["Services", "Tab", "TabFacts"]


class Tab:
    """One tab that has joined. ``confirmer`` asks its page whether it can work now; a tab without a page always can."""

    def __init__(
        self,
        services: Services,
        identity: Identity,
        facts: TabFacts,
        state: PageState,
        confirmer: Callable[[Election], Awaitable[bool]] | None = None,
    ) -> None:
        self.services = services
        self.identity = identity
        self.facts = facts
        self.state = state
        self._stalled = False
        self._info: TabInfo | None = None
        """What ``info`` gave, until something of it changes: every look of every election asks for it."""
        self._left: str | None = None
        self._confirmer = confirmer
        self._standing = Standing(self, services.elections, services.acting)
        self._queues = TabQueues(services.app, services.queues, self._standing, lambda: self.facts.user_session)
        self.locks = TabLocks(services.locks, self._who)
        self._flights = TabFlights(services.flights, self.locks, services.tasks)
        self.announce()
        services.events.emit(TabJoined(identity.tab_id, identity.connection_id, identity.generation))

    # -- what it does -------------------------------------------------------------------------------------------------

    def lead(
        self,
        resource: str,
        loop: LeaderLoop,
        *,
        policy: LeadershipPolicy | None = None,
        scope: str | None = None,
        **settings: Never,
    ) -> Election:
        """Stand for ``resource``; ``loop`` runs while this tab leads it. One election for each resource and scope.

        Raises:
            InvalidName: a name is not allowed, or reserved (``offline-queue``: a queue's leader is ``queue``'s).
            NotJoined: the tab has left.
            AlreadyStanding: this tab stands for the resource already.
            TypeError: ``loop`` is no async function, or an argument is the policy's.
        """
        check_lead(resource, loop, settings)
        if resource == QUEUE_RESOURCE:
            raise InvalidName(
                f"resource {resource!r} is reserved for queues: their leader is tab.queue(name, endpoint=...) or "
                "tab.queue(name, loop=...)"
            )
        standing_for = Resource(self.services.app, resource, scope)
        self._require_joined()
        return self._standing.stand(standing_for, loop, policy or LeadershipPolicy())

    def queue(
        self,
        name: str,
        *,
        scope: str | None = None,
        loop: QueueLoop | None = None,
        flush: bool | None = None,
        policy: LeadershipPolicy | None = None,
        options: QueueOptions | None = None,
        **settings: Any,
    ) -> Queue:
        """Open an offline queue. ``settings`` are those of ``QueueOptions``, if not given as one object.

        A tab that names an ``endpoint``, a ``sender``, or its own ``loop(context, queue)`` that empties
        ``queue.batches(context)``, also stands for flushing, unless ``flush`` is false. What is enqueued under a
        ``scope`` is sent only while the tab's user session is that scope, or the first parts of it, or was never told.

        Raises:
            InvalidName: a name is not allowed.
            InvalidOptions: an option is unknown or not valid; or there is both a loop and something to send by, or with
                ``flush=True`` neither; or this tab flushes the queue already, with other options.
            NotJoined: the tab has left.
        """
        self._require_joined()
        options = options_from(options, settings)
        return self._queues.open(name, scope=scope, loop=loop, flush=flush, policy=policy, options=options)

    def lock(
        self,
        name: str,
        *,
        scope: str | None = None,
        shared: bool = False,
        if_available: bool = False,
        timeout: float | None = None,
    ) -> LockRequest:
        """``async with tab.lock("case-42") as lock``: one tab at a time, or several that share it.

        Waiters are served in order. The body is cancelled, and ``LockLost`` comes out of it, when the tab may hold
        nothing any more (its page froze, hung, left). ``if_available``: not to wait at all. ``timeout``: in seconds.

        Raises:
            InvalidName: a name is not allowed.
            NotJoined: the tab has left.
            LockUnavailable: with ``if_available``, when it is taken; the body does not run.
            LockTimeout: it was not free in time; names its holder, if known.
            LockReentered: the same task holds it already.
            ValueError: ``timeout`` is no time, or given together with ``if_available``.
        """
        self._require_joined()
        return self.locks.request(name, scope=scope, shared=shared, if_available=if_available, timeout=timeout)

    async def single_flight(
        self, key: str, work: Callable[[], Awaitable[T]], *, scope: str | None = None, timeout: float | None = None
    ) -> T:
        """Let one tab do it (``await work()``) and give its result, or its error, to all that asked meanwhile.

        The result goes to other tabs as JSON. A tab that dies, freezes or hangs while it works is replaced by one that
        waits. Callers in one tab share one result object, and the error itself. Giving up (cancelling, ``timeout`` in
        seconds) stops the work only if nobody else in this tab waits for it.

        Raises:
            InvalidName, NotJoined: as for ``lock``.
            FlightFailed: it failed in another tab; names its error.
            NotCloneable: it was done here, and the result cannot go to other tabs.
            LockLost: it was being done here, and the page froze, hung or left meanwhile.
            LockTimeout: nothing came in time.
        """
        self._require_joined()
        return await self._flights.join(key, work, scope=scope, timeout=timeout)

    def metrics(self) -> Metrics:
        """What was counted since this tab's engine began, for all its tabs (docs/observing.md)."""
        return self.services.metrics()

    async def persist(self) -> bool:
        """Ask the browser to keep this origin's storage until the user removes it; whether it agreed."""
        return await self.services.ports.storage.persist()

    async def history(self, count: int = KEEP) -> list[Reign]:
        """Who led what, when, and why it ended: the last ``count`` entries of all tabs, newest first.

        Raises:
            DatabaseError: the store could not be read.
        """
        return await self.services.history.read(count)

    @property
    def elections(self) -> dict[str, Election]:
        """The running elections, by token resource."""
        return self._standing.elections

    def set_state(self, state: PageState) -> None:
        """The page's lifecycle, visibility or network changed."""
        if state == self.state:
            return
        self.state = state
        if self.services.in_page and state.lifecycle == "frozen":
            # Our own timers stand still with the page: what is not said now is not said before the thaw. Its locks are
            # dropped already, so it leads nothing.
            self._standing.dropped(self.identity.connection_id)
            self.announce()
            self.services.beaconer.speak()
        else:
            self.announce()
        self._look()

    def set_stalled(self, stalled: bool) -> None:
        """The page stopped answering, or answers again."""
        if stalled != self._stalled:
            self._stalled = stalled
            self.announce()
            self._look()

    def update(
        self,
        *,
        capabilities: Iterable[str] | None = None,
        user_session: str | None = None,
        session_changed: bool = False,
    ) -> None:
        """Change what the tab is. Another user session steps down everything that this tab leads."""
        if capabilities is not None:
            self.facts = replace(self.facts, capabilities=frozenset(capabilities))
        if user_session is None and self.facts.user_session is not None:
            user_session = ""
        if session_changed and user_session != self.facts.user_session:
            before = self.user_session
            self.facts = replace(self.facts, user_session=user_session)
            if self.user_session != before:
                self._standing.step_down("session-changed" if user_session else "logout")
        self.announce()
        self._look()

    def rejoin(self, identity: Identity) -> None:
        """Go on under a new identity: the page was restored from the back/forward cache, in a tab that was not left.

        The same elections and queues go on. The locks of the old connection must have been dropped when the page went;
        nothing is asked for before the new connection is admitted and the page's state is told.

        Raises:
            NotJoined: the tab has left.
        """
        self._require_joined()
        old, self.identity = self.identity, identity
        self._stalled, self._info = False, None
        if old.connection_id != identity.connection_id:
            self._standing.dropped(old.connection_id)
            self.services.roster.remove_own(old.connection_id)
        self.announce()
        self._look()
        self.services.events.emit(TabJoined(identity.tab_id, identity.connection_id, identity.generation))

    async def leave(self, reason: str) -> None:
        """Stop all elections and disappear from the roster."""
        if self._left is not None:
            return
        self._left = reason
        self._stop_elections(reason)
        await self.gone()

    def vanish(self, reason: str) -> None:
        """Like ``leave``, for a page that is no more: synchronous, and nothing is waited for; ``gone`` may be awaited.

        An engine may be suspended with its last page within some milliseconds.
        """
        if self._left is not None:
            return
        self._left = reason
        self.state, self._info = replace(self.state, lifecycle="closing"), None
        self.services.roster.remove_own(self.identity.connection_id)  # at once, and not as "closing" first
        self._stop_elections(reason)
        self.services.lease.judge()  # what it held has ended: it is given back before this returns

    async def gone(self) -> None:
        """Wait until a tab that leaves has stopped its elections."""
        await self._standing.stopped()
        self.services.roster.remove_own(self.identity.connection_id)
        self.services.events.emit(TabLeft(self.identity.tab_id, self.identity.connection_id, self._left or "left"))

    def _stop_elections(self, reason: str) -> None:
        self.locks.leave(reason)
        self._standing.stop(reason)

    # -- how it is (the Candidate of its elections) -------------------------------------------------------------------

    def info(self) -> TabInfo:
        """This tab as the roster would show it, as of now."""
        if self._info is None:
            self._info = TabInfo.of(self._note(), self.services.engine_id, "alive")
        return self._info

    async def confirm(self, election: Election) -> bool:
        """Whether the tab can work now."""
        return True if self._confirmer is None else await self._confirmer(election)

    def _note(self) -> TabNote:
        said = self._standing.candidacies
        return TabNote(
            tab=self.identity.tab_id,
            connection=self.identity.connection_id,
            generation=self.identity.generation,
            lifecycle="stalled" if self._stalled else self.state.lifecycle,
            visible=self.state.visible,
            online=self.state.online,
            version=self.facts.version,
            capabilities=tuple(sorted(self.facts.capabilities)),
            stands=tuple(key for key, candidacy in said.items() if candidacy.stands),
            age=0.0,
            scores=tuple((key, candidacy.score) for key, candidacy in said.items() if candidacy.score),
            turns=tuple((key, candidacy.turn) for key, candidacy in said.items() if candidacy.turn),
        )

    @property
    def user_session(self) -> str | None:
        """Who is signed in, in this tab's own words."""
        return self.facts.user_session or None

    def announce(self) -> None:
        """The tab changed, or what one of its elections says of it: tell the others."""
        self._info = None
        if self._left is None:
            self.services.roster.put_own(self._note(), self.services.ports.clock.monotonic())

    def _who(self) -> Who:
        lifecycle = self.state.lifecycle
        trouble = "stalled" if self._stalled else lifecycle if lifecycle in ("frozen", "closing") else ""
        return Who(self.identity.tab_id, self.identity.connection_id, trouble)

    def _look(self) -> None:
        self.locks.look()
        self.services.lease.judge()  # before anybody is admitted again
        self._standing.look()

    def _require_joined(self) -> None:
        if self._left is not None:
            raise NotJoined(f"tab {self.identity.tab_id!r} has left ({self._left}): join again")
