"""What one tab stands for: one election for each resource and scope."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import fields
from dis import Instruction, get_instructions
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR, CO_ITERABLE_COROUTINE, iscoroutinefunction
from types import FunctionType, MethodType

from tabhelm.election import LeadershipPolicy
from tabhelm.errors import AlreadyStanding
from tabhelm.leadership.acting import watch_acting
from tabhelm.leadership.candidacy import OVERRUN, Candidacy
from tabhelm.leadership.election import Election
from tabhelm.leadership.office import Candidate, ElectionServices, LeaderLoop
from tabhelm.leadership.states import State, Stopped
from tabhelm.names import Resource, nearest
from tabhelm.observe import ActingMonitor


def check_lead(name: str, loop: object, settings: Mapping[str, object]) -> None:
    """Check what an app gave to ``lead()``; ``settings`` are the keyword arguments that it does not take.

    Raises:
        TypeError: there is one, or the loop is no async function.
    """
    check_loop(name, loop)
    known = {field.name for field in fields(LeadershipPolicy)}
    for key in settings:
        if meant := key if key in known else nearest(key, known):
            raise TypeError(f"lead() takes no {key!r}: say policy=LeadershipPolicy({meant}=...)")
        raise TypeError(f"lead() got an unexpected keyword argument {key!r}")


def check_loop(name: str, loop: object) -> None:
    """Check that a leader loop may be an async function: what cannot be told (a wrapper, a lambda) may.

    Raises:
        TypeError: surely it is none: it would fail in every tenure.
    """
    function = loop.__func__ if isinstance(loop, MethodType) else loop
    if not callable(function) or (isinstance(function, FunctionType) and _gives_nothing_to_await(function)):
        raise TypeError(f"the leader loop of {name!r} is no async function: write `async def` before it")


def _gives_nothing_to_await(function: FunctionType) -> bool:
    if iscoroutinefunction(function):
        return False
    flags = function.__code__.co_flags
    if flags & CO_ITERABLE_COROUTINE:
        return False
    return bool(flags & (CO_GENERATOR | CO_ASYNC_GENERATOR)) or _returns_only_none(function)


def _returns_only_none(function: FunctionType) -> bool:
    """Whether every ``return`` is a bare one: then it is no wrapper of an async function either."""
    before: Instruction | None = None
    for step in get_instructions(function):
        if step.opname.startswith("RETURN_CONST"):
            if step.argval is not None:
                return False
        elif step.opname.startswith("RETURN_") and (
            step.is_jump_target or before is None or before.opname != "LOAD_CONST" or before.argval is not None
        ):
            return False
        before = step
    return True


class Standing:
    """The elections of a tab (``candidate``)."""

    def __init__(self, candidate: Candidate, services: ElectionServices, acting: ActingMonitor) -> None:
        self._candidate = candidate
        self._services = services
        self._acting = acting
        self._elections: dict[str, Election] = {}
        self._left_over: dict[str, asyncio.Task[None]] = {}
        """Loops of elections that have stopped, by token resource: they outlived their grace, and still run."""
        self._leaving: list[Election] = []

    def stand(
        self,
        resource: Resource,
        loop: LeaderLoop,
        policy: LeadershipPolicy,
        *,
        barred: Callable[[], str | None] = lambda: None,
    ) -> Election:
        """Stand for this one until its election is stopped. ``barred``: why the tab may not lead it now.

        Raises:
            AlreadyStanding: the tab stands for the resource already.
        """
        key = resource.token_resource
        if key in self._elections:
            raise AlreadyStanding(f"this tab already stands for {key!r}: stop that election first")
        election = Election(
            resource,
            loop,
            policy,
            self._candidate,
            self._services,
            lambda: OVERRUN if key in self._left_over else barred(),
        )
        self._elections[key] = election

        def forget(state: State) -> None:
            if isinstance(state, Stopped) and self._elections.get(key) is election:
                del self._elections[key]
                self._leave_over(key, election.loop)
                self._candidate.announce()

        election.subscribe(forget)
        watch_acting(self._acting, election)
        self._candidate.announce()
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

    @property
    def elections(self) -> dict[str, Election]:
        """The running ones, by token resource."""
        return dict(self._elections)

    @property
    def candidacies(self) -> dict[str, Candidacy]:
        """What they say of the tab, by token resource."""
        return {key: election.candidacy for key, election in self._elections.items()}

    def look(self) -> None:
        """The tab changed."""
        for election in list(self._elections.values()):
            election.look()

    def step_down(self, reason: str) -> None:
        """Give up all that the tab leads, and go on standing for it."""
        for election in list(self._elections.values()):
            election.step_down(reason)

    def dropped(self, connection_id: str) -> None:
        """The locks of this connection, which was the tab's, are dropped: it leads nothing."""
        now = self._services.clock.monotonic()
        for resource in self._elections:
            self._services.roster.clear_leading(resource, connection_id, now)

    def stop(self, reason: str) -> None:
        """Stop them all."""
        self._leaving = list(self._elections.values())
        for election in self._leaving:
            election.stop(reason)

    async def stopped(self) -> None:
        """Wait until all that ``stop`` stopped are over."""
        for election in list(self._leaving):
            await election.stopped()
