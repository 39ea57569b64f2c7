"""What ``tabhelm.join`` gives: one joined tab of a page (or worker) that runs Python itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from types import EllipsisType, TracebackType
from typing import Any, Literal, Never, TypeVar

from tabhelm.election import LeadershipPolicy
from tabhelm.errors import AlreadyStanding
from tabhelm.host.diagnosis import diagnosis
from tabhelm.host.page import PageHost, check_words
from tabhelm.host.reporting import ReportingSender, report, reporting, reporting_queue
from tabhelm.leadership import Election, LeaderLoop
from tabhelm.leadership.standing import check_lead, check_loop
from tabhelm.locking import LockRequest
from tabhelm.names import QUEUE_RESOURCE, check_scope
from tabhelm.observe import Events, Metrics, Reign
from tabhelm.observe.history import KEEP
from tabhelm.ports import PageState
from tabhelm.presence import LeaderInfo, TabInfo
from tabhelm.queue import Queue
from tabhelm.queue.options import QueueOptions, options_from
from tabhelm.queue.sending import as_sender
from tabhelm.queue.tab_queues import QueueLoop
from tabhelm.tab import Tab

Host = Literal["window", "worker"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Presence:
    """Who is here, as this tab knows: a hint, as old as the last beacons. Ages are in seconds."""

    own: TabInfo
    """This tab."""
    tabs: tuple[TabInfo, ...]
    """All known tabs, this one first. ``liveness`` says whether they were heard in time."""
    leaders: Mapping[str, LeaderInfo]
    """Who is said to lead what, by resource (``resource`` or ``resource:scope``)."""


class JoinedTab:
    """One joined tab. Made by ``tabhelm.join``; all times are seconds.

    It survives the back/forward cache: a restored page goes on with the same elections and queues, under a new
    ``connection_id``. Events (``tab.events``) tell what happened.
    """

    def __init__(self, page: PageHost, host: Host) -> None:
        self._page = page
        self._tab: Tab = page.tab
        self.host: Host = host
        """Where the Python runs: ``window`` (a page's main thread) or ``worker`` (a worker of a page)."""
        self.events.subscribe(report)

    def __repr__(self) -> str:
        return f"<JoinedTab {self.tab_id} of {self.app!r} v{self.protocol}, host {self.host!r}>"

    # -- who it is ----------------------------------------------------------------------------------------------------

    @property
    def app(self) -> str:
        return self._tab.services.app

    @property
    def protocol(self) -> int:
        return self._tab.services.protocol

    @property
    def tab_id(self) -> str:
        """Lives as long as the browser's tab: it survives reloads, and a duplicated tab gets another."""
        return self._tab.identity.tab_id

    @property
    def connection_id(self) -> str:
        """A new one at each join, and when the page comes back from the back/forward cache."""
        return self._tab.identity.connection_id

    @property
    def generation(self) -> int:
        """Counts the joins of this tab."""
        return self._tab.identity.generation

    @property
    def state(self) -> PageState:
        """Lifecycle, visibility and network, as the page says."""
        return self._tab.state

    @property
    def events(self) -> Events:
        """What happened: ``events.recent``, and ``events.subscribe(callback)`` for what will (types in
        ``tabhelm.observe``)."""
        return self._tab.services.events

    # -- leading ------------------------------------------------------------------------------------------------------

    def lead(
        self,
        resource: str | Queue,
        loop: LeaderLoop,
        *,
        policy: LeadershipPolicy | None = None,
        scope: str | None = None,
        **settings: Never,
    ) -> Election:
        """Stand for ``resource``; ``async def loop(context)`` runs while this tab leads it.

        The loop's task is cancelled when leadership ends; ``context.next_token()`` and ``context.headers()`` raise
        ``LeadershipLost`` from that moment on. Returning ends the tenure, and so does an exception, which goes to the
        log ``tabhelm`` and into a ``LoopFailed`` event; the tab then stands again after a pause. Given a queue (from
        ``tab.queue``), the tab stands for that queue's leadership, which ``queue.batches(context)`` needs.

        Raises:
            InvalidName: a name is not allowed, or reserved.
            NotJoined: the tab has left.
            AlreadyStanding: this tab stands for the resource already.
            TypeError: ``loop`` is no async function, or an argument is the policy's.
        """
        check_lead(resource.name if isinstance(resource, Queue) else resource, loop, settings)
        if not isinstance(resource, Queue):
            return self._tab.lead(resource, reporting(resource, loop), policy=policy, scope=scope)
        key = resource.shared.resource
        if key in self._tab.elections:
            raise AlreadyStanding(f"this tab already stands for {key!r}: stop that election first")
        name, _, own_scope = key.removeprefix(f"{self.app}:{QUEUE_RESOURCE}:").partition(":")
        if scope is not None and scope != own_scope:
            raise ValueError(f"scope {scope!r} is not that of queue {name!r}: leave it out, the queue has its own")
        run = reporting(name, loop)
        self._tab.queue(name, scope=own_scope or None, loop=lambda context, _: run(context), policy=policy)
        return self._tab.elections[key]

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
        """Open an offline queue: ``await queue.enqueue(payload)`` returns once the operation is durable.

        ``settings`` are those of ``QueueOptions`` (docs/queue.md), if they are not given as one object. A tab that
        names an ``endpoint``, a ``sender``, or its own ``async def loop(context, queue)`` over
        ``queue.batches(context)``, also stands for sending, unless ``flush`` is false. ``policy``: who may.

        Raises:
            InvalidName: a name is not allowed.
            InvalidOptions: an option is unknown, not valid, or contradicts another.
            NotJoined: the tab has left.
        """
        options = options_from(options, settings)
        if options.sender is not None:
            options = replace(options, sender=ReportingSender(name, as_sender(options.sender)))
        if loop is not None:
            check_loop(name, loop)
        own = None if loop is None else reporting_queue(name, loop)
        return self._tab.queue(name, scope=scope, loop=own, flush=flush, policy=policy, options=options)

    # -- locks --------------------------------------------------------------------------------------------------------

    def lock(
        self,
        name: str,
        *,
        scope: str | None = None,
        shared: bool = False,
        if_available: bool = False,
        timeout: float | None = None,
    ) -> LockRequest:
        """``async with tab.lock("case-42", timeout=2.0) as lock``: one tab at a time, or several that share it.

        Waiters are served in order. The body is cancelled, and ``LockLost`` comes out of it, when the page may hold
        nothing any more: it froze, hung, went into the back/forward cache, left. Whatever the body raises arrives as
        itself, and the lock is free at once. ``if_available``: not to wait at all. ``timeout``: seconds to wait.

        Raises:
            InvalidName: a name is not allowed.
            NotJoined: the tab has left.
            LockUnavailable: with ``if_available``, when it is taken; the body does not run.
            LockTimeout: it was not free in time; names its holder, if known.
            LockReentered: the same task holds it already.
            ValueError: ``timeout`` is no time, or given together with ``if_available``.
        """
        return self._tab.lock(name, scope=scope, shared=shared, if_available=if_available, timeout=timeout)

    async def single_flight(
        self, key: str, work: Callable[[], Awaitable[T]], *, scope: str | None = None, timeout: float | None = None
    ) -> T:
        """Let one tab do it (``await work()``) and give its result, or its error, to all that asked meanwhile.

        The result goes to other tabs as JSON. A tab that dies, freezes or hangs while it works is replaced by one that
        waits: ``work`` may be done more than once, but never twice at a time by tabs that can work. Callers in one tab
        share one result object, and the error itself. Giving up (cancelling, ``timeout`` in seconds) stops the work
        only if nobody else in this tab waits for it.

        Raises:
            InvalidName, NotJoined: as for ``lock``.
            FlightFailed: it failed in another tab; names its error.
            NotCloneable: it was done here, and the result cannot go to other tabs; names the place in it.
            LockLost: it was being done here, and the page froze, hung or left meanwhile.
            LockTimeout: nothing came in time.
        """
        return await self._tab.single_flight(key, work, scope=scope, timeout=timeout)

    # -- being there --------------------------------------------------------------------------------------------------

    def presence(self) -> Presence:
        """Who is here and who leads what, as of now."""
        services = self._tab.services
        now = services.ports.clock.monotonic()
        leaders = {
            info.resource.removeprefix(f"{self.app}:"): info
            for info in sorted(services.roster.leaders(now), key=lambda info: info.epoch)
            if info.liveness != "expired"
        }
        return Presence(self._tab.info(), tuple(services.roster.tabs(now)), leaders)

    def on_presence(self, callback: Callable[[Presence], None]) -> Callable[[], None]:
        """Call back whenever the presence changed; returns the way to stop. A callback that raises is dropped."""

        def changed() -> None:
            try:
                callback(self.presence())
            except Exception as error:
                stop()
                self.events.failed("presence subscriber", error)

        stop = self._tab.services.roster.subscribe(changed)
        return stop

    def update(
        self,
        *,
        capabilities: Iterable[str] | None = None,
        user_session: str | EllipsisType | None = ...,
    ) -> None:
        """Change what this tab is. Another user session (``None``: nobody is signed in) steps down all that it leads.

        Raises:
            InvalidName: a value is not allowed.
        """
        if capabilities is not None:
            capabilities = check_words("capabilities", capabilities)
        if user_session is not ...:
            check_scope(user_session)
            self._tab.update(capabilities=capabilities, user_session=user_session, session_changed=True)
        else:
            self._tab.update(capabilities=capabilities)

    # -- what happened ------------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """What was counted since this tab joined (docs/observing.md); ``metrics().text()`` is for Prometheus."""
        return self._tab.metrics()

    async def history(self, count: int = KEEP) -> list[Reign]:
        """Who led what, when, and why it ended: the last ``count`` entries of all tabs, newest first.

        It outlives tabs and engines, but not the origin's storage.

        Raises:
            DatabaseError: the store could not be read.
        """
        return await self._tab.history(count)

    async def persist(self) -> bool:
        """Ask the browser to keep this origin's storage until the user removes it (docs/storage.md); whether it agreed.

        Some browsers ask the user: call it when the user has just done something worth keeping. In a worker it cannot
        be asked for, and this only tells whether it was agreed to before.
        """
        return await self._tab.persist()

    async def diagnose(self) -> dict[str, Any]:
        """What this tab knows of itself and the others, as JSON for a support ticket. Raises nothing; takes seconds
        where storage or locks do not answer.

        Ids and scopes are hashed, the same way all over one report and in no other. It asks the lock manager, which
        evicts other tabs' pages from the back/forward cache: not to be called all the time.
        """
        return await diagnosis(self._tab, self._tab.services.ports.entropy.token_bytes(16).hex())

    async def leave(self, reason: str = "left") -> None:
        """Stop all elections (their loops get their grace), say goodbye, and keep nothing. Harmless when it has left.

        Cancelling it does not stop the leaving.
        """
        await self._page.leave(reason)


class Joining:
    """``async with join(…) as tab:`` leaves at the end of the block; ``tab = await join(…)`` stays until
    ``tab.leave()``, or until the page goes."""

    def __init__(self, enter: Callable[[], Coroutine[Any, Any, JoinedTab]]) -> None:
        self._enter = enter
        self._tab: JoinedTab | None = None

    def __await__(self) -> Generator[Any, Any, JoinedTab]:
        return self._enter().__await__()

    async def __aenter__(self) -> JoinedTab:
        self._tab = await self._enter()
        return self._tab

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tab is not None:
            await self._tab.leave("left" if kind is None else "failed" if issubclass(kind, Exception) else "cancelled")
