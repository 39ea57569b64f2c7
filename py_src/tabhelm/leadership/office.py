"""What an election and its terms are given: who stands, what for, and what all elections of an engine share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tabhelm.authority.choice import Authorities
from tabhelm.election import LeadershipPolicy
from tabhelm.leadership.changes import Changes
from tabhelm.leadership.context import LeaderContext
from tabhelm.leadership.exchange import Exchange
from tabhelm.leadership.states import State
from tabhelm.listeners import Listeners
from tabhelm.observe import Events
from tabhelm.ports import Clock, Entropy, Http
from tabhelm.presence import EngineWatch, Identity, Roster, TabInfo
from tabhelm.tasks import Tasks

if TYPE_CHECKING:
    from tabhelm.leadership.election import Election

LeaderLoop = Callable[[LeaderContext], Awaitable[None]]


class Candidate(Protocol):
    """The tab that stands."""

    @property
    def identity(self) -> Identity: ...

    @property
    def user_session(self) -> str | None:
        """Whose tab it is, if anybody is signed in."""

    def info(self) -> TabInfo:
        """How the tab is now."""

    def announce(self) -> None:
        """What one of its elections says of it changed: tell the others."""

    async def confirm(self, election: Election) -> bool:
        """Whether the tab can work now (a page acknowledges its grant). Bounded by the policy's ``engine_patience``."""


@dataclass(frozen=True, slots=True)
class ElectionServices:
    """What all elections of one engine share."""

    clock: Clock
    entropy: Entropy
    roster: Roster
    watch: EngineWatch
    authorities: Authorities
    events: Events
    tasks: Tasks
    http: Http
    exchange: Exchange
    storage_lost: Listeners[[str]]
    """Tells why the epochs in the database can no longer be relied on."""


class Office(Protocol):
    """An election, as its term sees it."""

    @property
    def key(self) -> str:
        """The token resource."""

    @property
    def policy(self) -> LeadershipPolicy: ...

    @property
    def candidate(self) -> Candidate: ...

    @property
    def services(self) -> ElectionServices: ...

    @property
    def changes(self) -> Changes: ...

    @property
    def status(self) -> State: ...

    async def run_loop(self, context: LeaderContext) -> None:
        """The leader's own work."""

    async def confirm(self) -> bool:
        """Whether the tab can work now."""

    def barred(self) -> str | None:
        """Why nothing may go on: stopped, or the tab may not lead now."""

    def resigning(self) -> str | None:
        """Why leadership is to be given up, if it is."""

    def leads(self, epoch: int | None) -> None:
        """Leadership has begun."""

    def step_down(self, reason: str) -> None: ...

    def enter(self, state: State) -> None: ...
