"""One page in the engine: its tab, its elections, its queues, and the messages between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tabhelm.errors import MalformedMessage, NotJoined, TabhelmError
from tabhelm.host.page_asking import PageAsking, Pages
from tabhelm.host.page_headers import page_policy
from tabhelm.host.page_locks import PageLocks
from tabhelm.host.page_loop import PageLoop
from tabhelm.host.page_queue import COALESCE, PageQueues, WithValues
from tabhelm.host.page_standing import PageStanding
from tabhelm.host.page_support import PageSupport
from tabhelm.host.python_loop import load_loop
from tabhelm.host.status import status_message
from tabhelm.host.views import leader_view, presence_view
from tabhelm.host.wire import Message, Post, field, milliseconds, optional_text, page_state, words
from tabhelm.leadership import Election, LeaderLoop, Stopped
from tabhelm.leadership.serving import Served
from tabhelm.observe import Event, HeldLockLost, LeadershipChanged, LockTimedOut, UpdateAvailable, as_dict
from tabhelm.ports import Timer
from tabhelm.presence import Identity
from tabhelm.services import Services
from tabhelm.tab import Tab, TabFacts

STALL_AFTER = 10.0
_LEADER_NEWS = ("connection_id", "epoch", "liveness", "version", "health", "progress")
"""What of a leader is worth a message when it changed: progress goes out with its beats, so it is seldom news."""


class Session:
    """Lives from a page's ``hello`` to its ``gone``."""

    def __init__(self, hello: Message, post: Post, services: Services) -> None:
        identity = Identity(field(hello, "tab", str), field(hello, "session", str), field(hello, "generation", int))
        facts = TabFacts(
            field(hello, "version", str, ""),
            frozenset(words(hello, "capabilities")),
            optional_text(hello, "userSession"),
        )
        self._post = post
        self._services = services
        self._test_hooks = field(hello, "testHooks", bool, False)
        self.silent_engine = optional_text(hello, "silentEngine")
        self.stall_after = milliseconds(hello, "stallAfterMs", STALL_AFTER)
        self._elections: dict[str, Election] = {}
        self._loops: dict[str, PageLoop] = {}
        self._stalled = False
        self._leaders: dict[str, object] = {}
        self._timers: dict[str, Timer] = {}
        self._unsubscribe: list[Callable[[], None]] = []
        self.tab = Tab(services, identity, facts, page_state(hello), self._confirm)
        self._unsubscribe.append(services.roster.subscribe(self._roster_changed))
        self._unsubscribe.append(services.events.subscribe(self._event))
        self._handlers: dict[str, Callable[[Message], None]] = {
            "state": lambda message: self.tab.set_state(page_state(message)),
            "freeze": self._freeze,
            "resume": self._resume,
            "stalled": lambda _: self._stall(True),
            "answering": lambda _: self._stall(False),
            "update": self._update,
            "lead": self._lead,
            "ack": self._ack,
            "ended": self._ended,
            "step-down": lambda message: self._election(message).step_down(field(message, "reason", str, "step-down")),
            "stop": lambda message: self._election(message).stop(field(message, "reason", str, "stopped")),
            "call": self._call,
        }
        self._standing = PageStanding(services.ports.clock, self._elections.get, self._loop)
        self._handlers |= self._standing.handlers
        self._handlers |= PageLocks(self.tab, services, post).handlers
        self._calls: dict[str, Callable[[Message], Awaitable[Any]]] = {
            "check": self._check,
        }
        self._queues = PageQueues(self.tab, services, post, lambda: self._quiet)
        self._handlers |= self._queues.handlers
        self._calls |= self._queues.calls
        self._asking = PageAsking(
            Pages(post, services, self._elections.get, self._served, lambda: self._quiet),
        )
        self._handlers |= self._asking.handlers
        self._calls |= self._asking.calls
        self._calls |= PageSupport(self.tab, services).calls
        if self._test_hooks:
            self._calls["forceElection"] = self._force_election

    def joined(self, info: dict[str, Any]) -> None:
        """Tell the page that it is in."""
        self._post({"type": "joined", **info})
        self._say_presence()

    def receive(self, message: Message) -> None:
        """One message of the page. Unknown types are ignored: the page may be newer.

        Raises:
            TabhelmError: the message cannot be used.
        """
        handler = self._handlers.get(message["type"])
        if handler is None:
            self._services.events.ignored("unknown-type")
            return
        handler(message)

    def end(self, reason: str) -> None:
        """The page is gone: everything that must be done before the engine may be suspended with it."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for timer in self._timers.values():
            timer.cancel()
        self._queues.end()
        for loop in list(self._loops.values()):
            loop.acknowledged(loop.grant, accepted=False)  # a grant that waits for this page need not wait longer
        self.tab.vanish(reason)

    async def ended(self) -> None:
        """Wait until nothing of it runs any more."""
        await self.tab.gone()

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def _freeze(self, _: Message) -> None:
        state = self.tab.state
        self.tab.set_state(type(state)("frozen", state.visible, state.online))

    def _resume(self, message: Message) -> None:
        self.tab.set_state(page_state(message))
        self._say_all()

    def _stall(self, stalled: bool) -> None:
        self._stalled = stalled
        self.tab.set_stalled(stalled)
        if not stalled:
            self._say_all()

    def _say_all(self) -> None:
        self._say_presence()
        self._asking.say_all()
        self._queues.say_all()

    @property
    def _quiet(self) -> bool:
        return self._stalled or self.tab.state.lifecycle == "frozen"

    def _update(self, message: Message) -> None:
        self.tab.update(
            capabilities=words(message, "capabilities") if message.get("capabilities") is not None else None,
            user_session=optional_text(message, "userSession"),
            session_changed="userSession" in message,
        )

    # -- elections ----------------------------------------------------------------------------------------------------

    def _lead(self, message: Message) -> None:
        handle = field(message, "election", str)
        loop = PageLoop(handle, self._post)
        try:
            python = optional_text(message, "python")
            run: LeaderLoop = loop.run if python is None else load_loop(python)
            functions, clock = self._queues.functions, self._services.ports.clock
            policy = page_policy(message.get("policy") or {}, handle, functions, clock)
            election = self.tab.lead(
                field(message, "resource", str), run, policy=policy, scope=optional_text(message, "scope")
            )
        except TabhelmError as error:
            problem = {"code": error.code, "message": str(error)}
            status = {"state": "stopped", "reason": error.code, "error": problem}
            self._post({"type": "status", "election": handle, "status": status})
            return
        self._loops[election.resource.token_resource] = loop
        self._elections[handle] = election
        self._standing.candidacy(message)
        election.subscribe(lambda state: self._status(handle, election))
        self._status(handle, election)
        self._asking.follow(handle, election)
        self._say_leader(handle, election)

    def _status(self, handle: str, election: Election) -> None:
        self._post({"type": "status", "election": handle, "status": status_message(election.status)})
        if isinstance(election.status, Stopped):
            self._elections.pop(handle, None)
            self._leaders.pop(handle, None)
            loop = self._loops.pop(election.resource.token_resource, None)
            if loop is not None:
                loop.close()

    async def _confirm(self, election: Election) -> bool:
        loop = self._loops.get(election.resource.token_resource)
        if loop is None:
            # A loop that runs here (Python, or a queue's flusher): still the page's leadership, so it must be able to
            # act.
            loop = PageLoop(f"engine:{election.resource.key}", self._post)
            self._loops[election.resource.token_resource] = loop
        return await loop.confirm()

    def _ack(self, message: Message) -> None:
        loop = self._loop(message)
        if loop is not None:
            loop.acknowledged(field(message, "grant", int))

    def _ended(self, message: Message) -> None:
        loop = self._loop(message)
        error = message.get("error")
        text = f"{error.get('name', 'Error')}: {error.get('message', '')}" if isinstance(error, dict) else None
        if loop is not None:
            loop.ended(field(message, "grant", int), text)

    def _served(self, message: Message) -> Served | None:
        loop = self._loop(message)
        return loop.served(field(message, "grant", int)) if loop else None

    def _loop(self, message: Message) -> PageLoop | None:
        handle = field(message, "election", str)
        if handle.startswith("engine:"):
            return self._loops.get(f"{self._services.app}:{handle.removeprefix('engine:')}")
        election = self._elections.get(handle)
        return self._loops.get(election.resource.token_resource) if election else None

    def _election(self, message: Message) -> Election:
        handle = field(message, "election", str)
        if handle not in self._elections:
            raise MalformedMessage(f"{message['type']!r} message: election {handle!r} is not running in this session")
        return self._elections[handle]

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, message: Message) -> None:
        self._services.tasks.start(self._answer(message), "call")

    async def _answer(self, message: Message) -> None:
        number = field(message, "id", int)
        try:
            method = field(message, "method", str)
            call = self._calls.get(method)
            if call is None:
                raise MalformedMessage(f"call: method {method!r} is unknown")
            result = await call(field(message, "params", dict, {}))
            values = result.values if isinstance(result, WithValues) else ()
            result = result.result if isinstance(result, WithValues) else result
            self._post({"type": "answer", "id": number, "result": result}, values)
        except TabhelmError as error:
            self._post({"type": "answer", "id": number, "error": {"code": error.code, "message": str(error)}})
        except Exception as error:
            problem = {"code": "internal-error", "message": f"{type(error).__name__}: {error}"}
            self._post({"type": "answer", "id": number, "error": problem})
            raise

    async def _check(self, params: Message) -> Any:
        handle = field(params, "election", str)
        election = self._elections.get(handle)
        loop = self._loops.get(election.resource.token_resource) if election else None
        if loop is None or not await loop.check(field(params, "grant", int)):
            raise NotJoined(f"election {handle!r} does not lead under this grant")

    async def _force_election(self, params: Message) -> Any:
        key = f"{self._services.app}:{field(params, 'resource', str)}"
        election = self.tab.elections.get(key)
        if election is None:
            raise MalformedMessage(f"this tab does not stand for {key!r}")
        election.step_down("forced")

    # -- telling the page ---------------------------------------------------------------------------------------------

    # The port of a page that stands still keeps every message: what it can do without is not sent meanwhile.

    def _event(self, event: Event) -> None:
        if not self._quiet and not self._concerns_others(event):
            self._post({"type": "event", "event": as_dict(event)})

    def _concerns_others(self, event: Event) -> bool:
        """Whether only another page of this engine has use for it. When one tab comes, every other one may change its
        rank: told to all, that would be a message for each pair of them."""
        me = self.tab.identity
        if isinstance(event, LeadershipChanged):
            return event.tab != me.tab_id and {event.before, event.after} <= {"idle", "waiting"}
        if isinstance(event, HeldLockLost | LockTimedOut):
            return event.tab != me.tab_id
        return isinstance(event, UpdateAvailable) and event.connection != me.connection_id

    def _roster_changed(self) -> None:
        self._soon("presence", self._say_presence)

    def _say_presence(self) -> None:
        if self._quiet:
            return
        self._post({"type": "presence", **presence_view(self.tab, self._services)})
        self._say_leaders()

    def _say_leaders(self) -> None:
        for handle, election in self._elections.items():
            self._say_leader(handle, election)

    def _say_leader(self, handle: str, election: Election) -> None:
        leader = election.leader()
        known = tuple(getattr(leader, name) for name in _LEADER_NEWS) if leader else None
        if self._leaders.get(handle, ()) != known:
            self._leaders[handle] = known
            view = leader_view(leader, self._services)
            self._post({"type": "leader", "election": handle, "resource": election.resource.key, "leader": view})

    def _soon(self, what: str, say: Callable[[], None]) -> None:
        if what in self._timers:
            return

        def due() -> None:
            del self._timers[what]
            say()

        self._timers[what] = self._services.ports.clock.call_later(COALESCE, due)
