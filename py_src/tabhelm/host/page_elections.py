"""A page's elections: those it stands in, the loops it runs while it leads, who leads otherwise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tabhelm.errors import MalformedMessage, NotJoined, TabhelmError
from tabhelm.host.page_asking import PageAsking, Pages
from tabhelm.host.page_headers import page_policy
from tabhelm.host.page_loop import PageLoop
from tabhelm.host.page_sender import PageFunctions
from tabhelm.host.page_standing import PageStanding
from tabhelm.host.python_loop import load_loop
from tabhelm.host.status import status_message
from tabhelm.host.views import leader_view
from tabhelm.host.wire import Message, Post, field, optional_text
from tabhelm.leadership import Election, LeaderLoop, Stopped
from tabhelm.leadership.serving import Served
from tabhelm.names import Resource
from tabhelm.observe import LeadershipChanged
from tabhelm.services import Services
from tabhelm.tab import Tab

_LEADER_NEWS = ("connection_id", "epoch", "liveness", "version", "health", "progress")
"""What of a leader is worth a message when it changed: progress goes out with its beats, so it is seldom news."""


class PageElections:
    """Those of one session. ``handlers`` and ``calls`` are what it makes of the page's messages; ``functions`` are the
    page's own, which its policies may need; ``quiet``: the page stands still, and is told nothing that it can do
    without."""

    def __init__(
        self,
        tab: Tab,
        services: Services,
        post: Post,
        functions: PageFunctions,
        quiet: Callable[[], bool],
        *,
        test_hooks: bool,
    ) -> None:
        self._tab = tab
        self._services = services
        self._post = post
        self._functions = functions
        self._elections: dict[str, Election] = {}
        """The running ones, by the page's handle."""
        self._loops: dict[str, PageLoop] = {}
        """By token resource."""
        self._leaders: dict[str, object] = {}
        """What the page was told last of each election's leader."""
        self._standing = PageStanding(services.ports.clock, self._elections.get, self._loop)
        self._asking = PageAsking(Pages(post, services, self._elections.get, self._served, quiet))
        self.handlers: dict[str, Callable[[Message], None]] = {
            "lead": self._lead,
            "ack": self._ack,
            "ended": self._ended,
            "step-down": lambda message: self._election(message).step_down(field(message, "reason", str, "step-down")),
            "stop": lambda message: self._election(message).stop(field(message, "reason", str, "stopped")),
            **self._standing.handlers,
            **self._asking.handlers,
        }
        self.calls: dict[str, Callable[[Message], Awaitable[Any]]] = {"check": self._check, **self._asking.calls}
        if test_hooks:
            self.calls["forceElection"] = self._force_election

    def end(self) -> None:
        """The page is gone."""
        for loop in list(self._loops.values()):
            loop.acknowledged(loop.grant, accepted=False)  # a grant that waits for this page need not wait longer

    async def confirm(self, election: Election) -> bool:
        """Whether the page can work now: it acknowledges the grant."""
        loop = self._loops.get(election.resource.token_resource)
        if loop is None:
            # A loop that runs here (Python, or a queue's flusher): still the page's leadership, so it must be able to
            # act.
            loop = PageLoop(f"engine:{election.resource.key}", self._post)
            self._loops[election.resource.token_resource] = loop
        return await loop.confirm()

    # -- what the page wants ------------------------------------------------------------------------------------------

    def _lead(self, message: Message) -> None:
        handle = field(message, "election", str)
        loop = PageLoop(handle, self._post)
        try:
            python = optional_text(message, "python")
            run: LeaderLoop = loop.run if python is None else load_loop(python)
            policy = page_policy(message.get("policy") or {}, handle, self._functions, self._services.ports.clock)
            election = self._tab.lead(
                field(message, "resource", str), run, policy=policy, scope=optional_text(message, "scope")
            )
        except TabhelmError as error:
            self._tell_refused(message, error)
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

    def _tell_refused(self, message: Message, error: TabhelmError) -> None:
        """An election that cannot begin ends with an event, as any other."""
        try:
            name, scope = field(message, "resource", str), optional_text(message, "scope")
            key = Resource(self._services.app, name, scope).token_resource
        except TabhelmError:
            return  # nothing that could be named
        if key in self._tab.elections:
            return  # it would be read as the end of the one that goes on
        tab = self._tab.info()
        self._services.events.emit(
            LeadershipChanged(
                key, tab.tab_id, "idle", "stopped", error.code, None, tab.lifecycle, tab.visible, str(error)
            )
        )

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

    async def _check(self, params: Message) -> Any:
        handle = field(params, "election", str)
        election = self._elections.get(handle)
        loop = self._loops.get(election.resource.token_resource) if election else None
        if loop is None or not await loop.check(field(params, "grant", int)):
            raise NotJoined(f"election {handle!r} does not lead under this grant")

    async def _force_election(self, params: Message) -> Any:
        key = f"{self._services.app}:{field(params, 'resource', str)}"
        election = self._tab.elections.get(key)
        if election is None:
            raise MalformedMessage(f"this tab does not stand for {key!r}")
        election.step_down("forced")

    # -- whose message it is ------------------------------------------------------------------------------------------

    def _election(self, message: Message) -> Election:
        handle = field(message, "election", str)
        if handle not in self._elections:
            raise MalformedMessage(f"{message['type']!r} message: election {handle!r} is not running in this session")
        return self._elections[handle]

    def _loop(self, message: Message) -> PageLoop | None:
        handle = field(message, "election", str)
        if handle.startswith("engine:"):
            return self._loops.get(f"{self._services.app}:{handle.removeprefix('engine:')}")
        election = self._elections.get(handle)
        return self._loops.get(election.resource.token_resource) if election else None

    def _served(self, message: Message) -> Served | None:
        loop = self._loop(message)
        return loop.served(field(message, "grant", int)) if loop else None

    # -- telling the page ---------------------------------------------------------------------------------------------

    def say_states(self) -> None:
        """The page goes on after a standstill: what its elections' leaders publish."""
        self._asking.say_all()

    def say_leaders(self) -> None:
        """Who leads, of each election where that is news."""
        for handle, election in self._elections.items():
            self._say_leader(handle, election)

    def _say_leader(self, handle: str, election: Election) -> None:
        leader = election.leader()
        known = tuple(getattr(leader, name) for name in _LEADER_NEWS) if leader else None
        if self._leaders.get(handle, ()) != known:
            self._leaders[handle] = known
            view = leader_view(leader, self._services)
            self._post({"type": "leader", "election": handle, "resource": election.resource.key, "leader": view})

    def _status(self, handle: str, election: Election) -> None:
        self._post({"type": "status", "election": handle, "status": status_message(election.status)})
        if isinstance(election.status, Stopped):
            self._elections.pop(handle, None)
            self._leaders.pop(handle, None)
            loop = self._loops.pop(election.resource.token_resource, None)
            if loop is not None:
                loop.close()
