"""One joined tab: its identity, and the services of the rooms below, ready to use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tabhelm.election import LeadershipPolicy
from tabhelm.election.policy import SERVER_LEASE
from tabhelm.errors import AlreadyStanding, InvalidName, InvalidOptions, InvalidPolicy, NotJoined
from tabhelm.leadership import Candidacy, Election, LeaderContext, LeaderLoop, State, Stopped
from tabhelm.leadership.acting import watch_acting
from tabhelm.leadership.candidacy import OVERRUN
from tabhelm.locking import LockRequest, TabFlights, TabLocks, Who
from tabhelm.messages import MAX_ITEMS, TabNote
from tabhelm.names import MAX_NAME, QUEUE_RESOURCE, Resource, queue_resource
from tabhelm.observe import Metrics, Reign, TabJoined, TabLeft
from tabhelm.observe.history import KEEP
from tabhelm.ports import PageState
from tabhelm.presence import Identity, TabInfo
from tabhelm.queue import Queue
from tabhelm.queue.options import QueueOptions, options_from
from tabhelm.services import Services

T = TypeVar("T")

__all__ = ["QueueLoop", "Services", "Tab", "TabFacts"]


@dataclass(frozen=True, slots=True)
class TabFacts:
    """What a tab says of itself, besides its page's state."""

    version: str = ""
    capabilities: frozenset[str] = frozenset()
    user_session: str | None = None
    """``None``: never told. Empty: signed out, and whose cookies come next nobody has said yet."""

    def __post_init__(self) -> None:
        # What others would not read in a beacon would hide the tab, and all others of its engine.
        if not isinstance(self.version, str) or len(self.version) > MAX_NAME:
            raise InvalidName(f"version {self.version!r:.60} is not a text of at most {MAX_NAME} characters")
        if len(self.capabilities) > MAX_ITEMS:
            raise InvalidName(f"{len(self.capabilities)} capabilities are more than {MAX_ITEMS}")
        for capability in self.capabilities:
            if not 1 <= len(capability) <= MAX_NAME:
                raise InvalidName(f"capability {capability[:60]!r} is not 1 to {MAX_NAME} characters long")


QueueLoop = Callable[[LeaderContext, Queue], Awaitable[None]]


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
        self._leaving: list[Election] = []
        self._flushing: dict[str, tuple[QueueOptions, QueueLoop | None]] = {}
        """By what the queues are flushed for which this tab stands, or stood."""
        self._confirmer = confirmer
        self._elections: dict[str, Election] = {}
        self._left_over: dict[str, asyncio.Task[None]] = {}
        """Loops of elections that have stopped, by token resource: they outlived their grace, and still run."""
        self.locks = TabLocks(services.locks, self._who)
        self._flights = TabFlights(services.flights, self.locks, services.tasks)
        self._announce()
        services.events.emit(TabJoined(identity.tab_id, identity.connection_id, identity.generation))

    # -- what it does -------------------------------------------------------------------------------------------------

    def lead(
        self,
        resource: str,
        loop: LeaderLoop,
        *,
        policy: LeadershipPolicy | None = None,
        scope: str | None = None,
    ) -> Election:
        """Stand for ``resource``; ``loop`` runs while this tab leads it. One election for each resource and scope.

        Raises:
            InvalidName: a name is not allowed, or reserved (``offline-queue``: a queue's leader is ``queue``'s).
            NotJoined: the tab has left.
            AlreadyStanding: this tab stands for the resource already.
        """
        if resource == QUEUE_RESOURCE:
            raise InvalidName(
                f"resource {resource!r} is reserved for queues: their leader is tab.queue(name, endpoint=...) or "
                "tab.queue(name, loop=...)"
            )
        return self._stand(Resource(self.services.app, resource, scope), loop, policy or LeadershipPolicy())

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
        sends = options.endpoint is not None or options.sender is not None
        if sends and loop is not None:
            what = "to an endpoint" if options.sender is None else "by a sender"
            raise InvalidOptions(f"queue {name!r} is flushed {what} or by a loop, not by both: leave one out")
        resource = queue_resource(self.services.app, name, scope)
        key = resource.token_resource
        flushes = flush is not False and (sends or loop is not None)
        if flush and not flushes:
            raise InvalidOptions(
                f"queue {name!r}: flush {flush!r} is not valid where there is nothing to send by: name an endpoint, a "
                "sender or a loop, or leave it out"
            )
        if flushes and self._flushing.get(key, (options, loop)) != (options, loop) and key in self._elections:
            raise InvalidOptions(
                f"queue {name!r} is already open with other options: this tab would go by the first ones"
            )
        queue = Queue(name, self.services.queues.open(key), options)
        if flushes and key not in self._elections:
            self._flushing[key] = options, loop
            policy = policy or LeadershipPolicy(online=True)
            if SERVER_LEASE in policy.authorities:
                raise InvalidPolicy(
                    f"queue {name!r}: authorities {policy.authorities!r} is not valid: each device empties its own "
                    "queue, so a lease service cannot decide which of them may"
                )
            self._stand(resource, _flusher(queue, loop), policy, barred=lambda: self._barred_from(scope))
        return queue

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

    def _barred_from(self, scope: str | None) -> str | None:
        """Another user's cookies would carry this scope's operations."""
        session = self.facts.user_session
        if scope is None or session is None or scope == session or scope.startswith(f"{session}:"):
            return None
        return "session-mismatch"

    def _stand(
        self,
        resource: Resource,
        loop: LeaderLoop,
        policy: LeadershipPolicy,
        *,
        barred: Callable[[], str | None] = lambda: None,
    ) -> Election:
        self._require_joined()
        key = resource.token_resource
        if key in self._elections:
            raise AlreadyStanding(f"this tab already stands for {key!r}: stop that election first")
        election = Election(
            resource,
            loop,
            policy,
            self,
            self.services.elections,
            lambda: OVERRUN if key in self._left_over else barred(),
        )
        self._elections[key] = election

        def forget(state: State) -> None:
            if isinstance(state, Stopped) and self._elections.get(key) is election:
                del self._elections[key]
                self._leave_over(key, election.loop)
                self._announce()

        election.subscribe(forget)
        watch_acting(self.services.acting, election)
        self._announce()
        return election

    def _leave_over(self, key: str, loop: asyncio.Task[None] | None) -> None:
        """An election has stopped; its loop may go on. Whoever stands for the same next must wait for its end."""
        if loop is None or loop.done():
            return
        self._left_over[key] = loop

        def ended(_: object) -> None:
            del self._left_over[key]
            if (standing := self._elections.get(key)) is not None:
                standing.look()

        loop.add_done_callback(ended)

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
        return dict(self._elections)

    def set_state(self, state: PageState) -> None:
        """The page's lifecycle, visibility or network changed."""
        if state == self.state:
            return
        self.state = state
        if self.services.in_page and state.lifecycle == "frozen":
            # Our own timers stand still with the page: what is not said now is not said before the thaw. Its locks are
            # dropped already, so it leads nothing.
            self._leads_nothing(self.identity.connection_id)
            self._announce()
            self.services.beaconer.speak()
        else:
            self._announce()
        self._look()

    def set_stalled(self, stalled: bool) -> None:
        """The page stopped answering, or answers again."""
        if stalled != self._stalled:
            self._stalled = stalled
            self._announce()
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
            for election in self._elections.values() if self.user_session != before else ():
                election.step_down("session-changed" if user_session else "logout")
        self._announce()
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
            self._leads_nothing(old.connection_id)
            self.services.roster.remove_own(old.connection_id)
        self._announce()
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
        for election in list(self._leaving):
            await election.stopped()
        self.services.roster.remove_own(self.identity.connection_id)
        self.services.events.emit(TabLeft(self.identity.tab_id, self.identity.connection_id, self._left or "left"))

    def _stop_elections(self, reason: str) -> None:
        self.locks.leave(reason)
        self._leaving = list(self._elections.values())
        for election in self._leaving:
            election.stop(reason)

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
        return TabNote(
            tab=self.identity.tab_id,
            connection=self.identity.connection_id,
            generation=self.identity.generation,
            lifecycle="stalled" if self._stalled else self.state.lifecycle,
            visible=self.state.visible,
            online=self.state.online,
            version=self.facts.version,
            capabilities=tuple(sorted(self.facts.capabilities)),
            stands=tuple(key for key, election in self._elections.items() if election.candidacy.stands),
            age=0.0,
            scores=tuple((key, said.score) for key, said in self._candidacies() if said.score),
            turns=tuple((key, said.turn) for key, said in self._candidacies() if said.turn),
        )

    def _candidacies(self) -> Iterable[tuple[str, Candidacy]]:
        return ((key, election.candidacy) for key, election in self._elections.items())

    @property
    def user_session(self) -> str | None:
        """Who is signed in, in this tab's own words."""
        return self.facts.user_session or None

    def announce(self) -> None:
        """What one of its elections says of it changed."""
        self._announce()

    def _announce(self) -> None:
        self._info = None
        if self._left is None:
            self.services.roster.put_own(self._note(), self.services.ports.clock.monotonic())

    def _leads_nothing(self, connection_id: str) -> None:
        now = self.services.ports.clock.monotonic()
        for resource in self._elections:
            self.services.roster.clear_leading(resource, connection_id, now)

    def _who(self) -> Who:
        lifecycle = self.state.lifecycle
        trouble = "stalled" if self._stalled else lifecycle if lifecycle in ("frozen", "closing") else ""
        return Who(self.identity.tab_id, self.identity.connection_id, trouble)

    def _look(self) -> None:
        self.locks.look()
        self.services.lease.judge()  # before anybody is admitted again
        for election in list(self._elections.values()):
            election.look()

    def _require_joined(self) -> None:
        if self._left is not None:
            raise NotJoined(f"tab {self.identity.tab_id!r} has left ({self._left}): join again")


def _flusher(queue: Queue, loop: QueueLoop | None) -> LeaderLoop:
    async def run(context: LeaderContext) -> None:
        await (queue.flush(context) if loop is None else loop(context, queue))

    return run
