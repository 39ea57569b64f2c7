"""Web Locks as specified: strictly first in, first out per name; shared, exclusive, ifAvailable, steal, abort.

The lock manager lives outside the agents. Requests, aborts and releases travel to it in order, and what an agent sent
before it died arrives before the news of its death. A frozen agent keeps its locks and, being next, is granted more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tabhelm.errors import LockWithdrawn, NoAuthority
from tabhelm.ports.locks import LockEnd, LockInfo, LockMode, LockSnapshot
from tabhelm.simulated.loop import fail, settle

if TYPE_CHECKING:
    from tabhelm.simulated.world import Pipe, SimulatedAgent, World


class _Request:
    """One request as the manager sees it, and what its agent knows of it."""

    def __init__(self, locks: SimulatedLocks, name: str, owner: str, mode: LockMode) -> None:
        self.locks = locks
        self.name = name
        self.owner = owner
        self.mode = mode
        self.future: asyncio.Future[SimulatedLock | None] = locks.agent.loop.create_future()
        self.lock: SimulatedLock | None = None
        self.withdrawn = False

    @property
    def agent(self) -> SimulatedAgent:
        return self.locks.agent


class LockManager:
    """The browser's side."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held: dict[str, list[_Request]] = {}
        self.queues: dict[str, list[_Request]] = {}
        self.withdrawal_grants = True
        """Whether the queue is looked at again when a waiting request is withdrawn, as the specification says. Chromium
        does not: shared requests behind a withdrawn exclusive one then wait until a holder lets go."""

    def request(self, request: _Request, if_available: bool, steal: bool) -> None:
        self._evict_cached_holders(request.name)
        if not request.agent.alive:
            return
        queue = self.queues.setdefault(request.name, [])
        if steal:
            for robbed in self.held.pop(request.name, []):
                self.world.note(robbed.agent.name, f"robbed of {request.name}")
                robbed.locks.robbed_at = float("inf")
                robbed.locks.inbox.send(robbed.locks.ended, robbed)
            queue.insert(0, request)
        elif if_available and (queue or not self._compatible(request)):
            request.locks.inbox.send(request.locks.unavailable, request)
        else:
            queue.append(request)
            if len(queue) > 1 and not self.withdrawal_grants:
                return
        self._process(request.name)

    def withdraw(self, request: _Request) -> None:
        """Take back a request that waits, or whose grant its agent has not seen yet."""
        queue = self.queues.get(request.name, [])
        if request in queue:
            queue.remove(request)
            if self.withdrawal_grants:
                self._process(request.name)
        else:
            self.release(request)

    def release(self, request: _Request) -> None:
        holders = self.held.get(request.name, [])
        if request in holders:
            holders.remove(request)
            self.world.note(request.agent.name, f"released {request.name}")
            self._process(request.name)

    def bury(self, agent: SimulatedAgent) -> None:
        """Let go all that a dead agent held or wanted."""
        names = sorted({*self.held, *self.queues})
        for name in names:
            self.queues[name] = [each for each in self.queues.get(name, []) if each.agent is not agent]
            self.held[name] = [each for each in self.held.get(name, []) if each.agent is not agent]
        for name in names:
            self._process(name)

    def snapshot(self) -> LockSnapshot:
        def infos(table: dict[str, list[_Request]]) -> tuple[LockInfo, ...]:
            return tuple(LockInfo(each.name, each.mode, each.agent.name) for name in table for each in table[name])

        return LockSnapshot(infos(self.held), infos(self.queues))

    def query(self, answer: Callable[[LockSnapshot], None]) -> None:
        """Looking at locks evicts cached pages that hold some, as contention does."""
        for name in list(self.held):
            self._evict_cached_holders(name)
        answer(self.snapshot())

    def _compatible(self, request: _Request) -> bool:
        holders = self.held.get(request.name, [])
        return not holders or (request.mode == "shared" and all(each.mode == "shared" for each in holders))

    def _process(self, name: str) -> None:
        queue = self.queues.get(name, [])
        while queue and self._compatible(queue[0]):
            request = queue.pop(0)
            self.held.setdefault(name, []).append(request)
            self.world.note(request.agent.name, f"granted {name}")
            request.locks.inbox.send(request.locks.granted, request)
        if not queue:
            self.queues.pop(name, None)
        if not self.held.get(name):
            self.held.pop(name, None)

    def _evict_cached_holders(self, name: str) -> None:
        for holder in list(self.held.get(name, [])):
            if holder.agent.evict is not None:
                self.world.note(holder.agent.name, f"evicted from the bfcache: contention on {name}")
                holder.agent.evict()


class SimulatedLock:
    """A held lock."""

    def __init__(self, request: _Request) -> None:
        self._request = request
        self._callback: Callable[[LockEnd], None] | None = None
        self.ended: LockEnd | None = None

    def __repr__(self) -> str:
        return f"<SimulatedLock {self.name} {self.ended or 'held'}>"

    @property
    def name(self) -> str:
        return self._request.name

    @property
    def held(self) -> bool:
        return self.ended is None

    def release(self) -> None:
        self._request.locks.let_go(self._request, "released")

    def on_end(self, callback: Callable[[LockEnd], None]) -> None:
        self._callback = callback
        if self.ended is not None:
            self._tell()

    def end(self, reason: LockEnd) -> None:
        self.ended = reason
        if self._callback is not None:
            self._tell()

    def _tell(self) -> None:
        callback, reason = self._callback, self.ended
        if callback is not None and reason is not None:
            self._callback = None
            self._request.agent.post(callback, reason)


class SimulatedLocks:
    """The port of one agent."""

    def __init__(self, manager: LockManager, agent: SimulatedAgent) -> None:
        world = manager.world
        self.manager = manager
        self.agent = agent
        self._outbox: Pipe = world.pipe(f"lock-out:{agent.name}", lambda: world.faults.lock_delay)
        self.inbox: Pipe = world.pipe(f"lock-in:{agent.name}", lambda: world.faults.lock_delay)
        self.robbed_at = float("-inf")
        """When the agent last heard that it was robbed; infinite while it has yet to hear of it."""
        self._admitted: set[str] = {""}
        self._requests: dict[_Request, None] = {}
        agent.on_death.append(lambda: self._outbox.send(manager.bury, agent))

    async def acquire(
        self,
        name: str,
        *,
        owner: str = "",
        mode: LockMode = "exclusive",
        if_available: bool = False,
        steal: bool = False,
    ) -> SimulatedLock | None:
        if steal and (if_available or mode != "exclusive"):
            raise ValueError(f"lock {name!r}: steal goes neither with if_available nor with mode 'shared'")
        if owner not in self._admitted:
            raise LockWithdrawn(name, f"owner {owner!r} is not admitted")
        if self.manager.world.faults.locks_denied:
            raise NoAuthority(f"lock {name!r} cannot be asked for: this context has no Web Locks")
        request = _Request(self, name, owner, mode)
        self._requests[request] = None
        self._send(self.manager.request, request, if_available, steal)
        try:
            lock = await request.future
        except asyncio.CancelledError:
            self.let_go(request, "released")
            raise
        if lock is not None and lock.ended == "dropped":
            raise LockWithdrawn(name, f"owner {owner!r} was dropped")
        return lock

    def admit(self, owner: str) -> None:
        self._admitted.add(owner)

    def drop(self, owner: str) -> None:
        if owner:
            self._admitted.discard(owner)
        for request in [each for each in self._requests if each.owner == owner]:
            self.let_go(request, "dropped")

    def admitted(self, owner: str) -> bool:
        return owner in self._admitted

    async def query(self) -> LockSnapshot:
        future: asyncio.Future[LockSnapshot] = self.agent.loop.create_future()

        def answer(snapshot: LockSnapshot) -> None:
            self.inbox.send(self.agent.post, settle, future, snapshot)

        self._send(self.manager.query, answer)
        return await future

    def let_go(self, request: _Request, reason: LockEnd) -> None:
        """End a request in whatever state it is: waiting, granted but not told yet, or held."""
        if request not in self._requests:
            return
        del self._requests[request]
        if request.lock is not None:
            request.lock.end(reason)
            self._send(self.manager.release, request)
            return
        request.withdrawn = True  # a grant on its way means nothing any more
        self._send(self.manager.withdraw, request)
        fail(request.future, LockWithdrawn(request.name, f"owner {request.owner!r} was {reason}"))

    def granted(self, request: _Request) -> None:
        """News from the manager; a frozen agent hears it after the thaw."""
        self.agent.post(self._on_grant, request)

    def ended(self, request: _Request) -> None:
        """News from the manager: stolen."""
        self.agent.post(self._on_theft, request)

    def unavailable(self, request: _Request) -> None:
        """News from the manager: ``if_available`` found it taken."""
        self.agent.post(self._on_unavailable, request)

    def _on_grant(self, request: _Request) -> None:
        if request.withdrawn:
            return
        request.lock = SimulatedLock(request)
        settle(request.future, request.lock)  # or cancelled a moment ago: the waiter is about to let go

    def _on_theft(self, request: _Request) -> None:
        self.robbed_at = self.agent.loop.time()
        if self._requests.pop(request, request) is None and request.lock is not None:
            request.lock.end("stolen")

    def _on_unavailable(self, request: _Request) -> None:
        self._requests.pop(request, None)
        settle(request.future, None)

    def _send(self, message: Callable[..., None], *args: object) -> None:
        if self.agent.alive:
            self._outbox.send(message, *args)
