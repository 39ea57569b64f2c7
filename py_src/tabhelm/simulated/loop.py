"""An event loop with virtual time that interleaves many simulated contexts adversarially and replays exactly.

One loop runs every page and worker of a simulated browser. Each callback belongs to the *agent* (a page's or worker's
event loop) whose context it carries, so the real core, with its ordinary tasks and futures, is sorted into agents
without knowing it. Inside an agent callbacks run first in, first out; *which* agent runs next is drawn from a seed.
Time stands still while anything can run, then leaps to the next timer. Nothing depends on the real clock, on hash seeds
or on addresses: the same seed gives the same history, and ``digest`` proves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_AGENT: ContextVar[Agent | None] = ContextVar("tabhelm_simulated_agent", default=None)


class SimulationError(Exception):
    """The simulation itself cannot go on, or ended with failures nobody looked at."""


class SimulationStalled(SimulationError):
    """Nothing can run and no timer is left, yet the awaited result is not there: everybody waits for ever."""


class SimulationLivelock(SimulationError):
    """Callbacks keep running without end: at one instant, or beyond the total number of steps allowed."""


class SimulationTimeout(SimulationError):
    """The awaited result was not there at the end of the virtual time allowed."""


class Agent:
    """One simulated event loop: of a page, a worker, or (``SimulatedLoop.root``) of the world around them."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.frozen = False
        self.tasks: list[asyncio.Task[Any]] = []
        self._stops = 0
        self._label = name.encode()
        self._ready: deque[asyncio.Handle] = deque()
        self._events: deque[asyncio.Handle] = deque()
        self._compact_at = 64

    def __repr__(self) -> str:
        return f"<Agent {self.name} {self.state}>"

    @property
    def state(self) -> str:
        """``running``, ``frozen``, ``stopped`` (hung, or suspended without an event) or ``dead``."""
        if not self.alive:
            return "dead"
        return "stopped" if self._stops else "frozen" if self.frozen else "running"

    def context(self) -> Context:
        """A copy of the current context that belongs to this agent."""
        context = copy_context()
        context.run(_AGENT.set, self)
        return context

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task of this agent. Await it from anywhere; it never ends if the agent dies."""
        return self.loop.create_task(coroutine, context=self.context())

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function at once, inside this agent (as its own synchronous event handler would)."""
        return self.context().run(function, *args)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Hand a task to the agent's loop: it runs after what is queued there, or after the thaw."""
        self.loop.call_soon(callback, *args, context=self.context())

    def post_event(self, callback: Callable[..., object], *args: Any) -> None:
        """Hand over an event that browsers deliver even to a frozen page (a BroadcastChannel message)."""
        if self.alive:
            self._events.append(asyncio.Handle(callback, args, self.loop, self.context()))
            self.loop._consider(self)

    def freeze(self) -> None:
        """Park everything but channel events. Timers that fall due meanwhile fire once, at the thaw."""
        self.frozen = True
        self.loop._consider(self)

    def thaw(self) -> None:
        """Go on after ``freeze``."""
        self.frozen = False
        self.loop._consider(self)

    def stop(self) -> None:
        """Park everything without an exception (a busy loop, SIGSTOP, the back/forward cache); nests."""
        self._stops += 1
        self.loop._consider(self)

    def go(self) -> None:
        """Undo one ``stop``."""
        self._stops -= 1
        self.loop._consider(self)

    def hang(self, seconds: float) -> None:
        """Stand still for so long, as in a busy loop: no event tells anybody."""
        self.stop()
        self.loop.call_at(self.loop.time() + seconds, self.go, context=self.loop.root.context())

    def die(self) -> None:
        """End without a word: callbacks are dropped, tasks never resume, no ``finally`` runs."""
        self.alive = False
        self._ready.clear()
        self._events.clear()
        self.loop._consider(self)

    def _adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep pending tasks alive, so that no garbage collection ends one (that would run its ``finally``)."""
        self.tasks.append(task)
        if len(self.tasks) >= self._compact_at:
            self.tasks = [each for each in self.tasks if not each.done()]
            self._compact_at = max(64, 2 * len(self.tasks))

    def _runnable(self) -> bool:
        if not self.alive or self._stops:
            return False
        return bool(self._events) or (bool(self._ready) and not self.frozen)

    def _next(self, rng: random.Random) -> asyncio.Handle:
        """The next callback. Browsers order two task sources as they like, so the generator decides between them."""
        if not self._events:
            return self._ready.popleft()
        if self.frozen or not self._ready or rng.random() < 0.5:
            return self._events.popleft()
        return self._ready.popleft()


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop. Use ``run``; ``max_steps`` and ``max_instant`` bound callbacks in all and at one virtual instant."""

    def __init__(self, seed: int | str = 0, *, max_steps: int = 20_000_000, max_instant: int = 200_000) -> None:
        super().__init__()
        self.rng = random.Random(f"loop:{seed}")
        self.steps = 0
        self.digest = 0
        self.errors: list[str] = []
        self.max_steps = max_steps
        self.max_instant = max_instant
        self.after_step: Callable[[], None] | None = None
        """Called after every callback: where invariants are checked."""
        self._agents: list[Agent] = []
        self._now = 0.0
        self._deadline = float("inf")
        self._instant = 0
        self._timers: list[tuple[float, int, Agent, asyncio.TimerHandle]] = []
        self._sequence = 0
        self._candidates: dict[Agent, None] = {}
        self.root = self.agent("world")
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_error)

    def agent(self, name: str) -> Agent:
        """Make a new agent."""
        return self.adopt(Agent(self, name))

    def adopt(self, agent: Agent) -> Agent:
        """Take in an agent (for subclasses of ``Agent``)."""
        self._agents.append(agent)
        return agent

    @staticmethod
    def current() -> Agent | None:
        """The agent whose callback is running; ``None`` in the world's own code."""
        return _AGENT.get()

    def time(self) -> float:
        return self._now

    def run(self, coroutine: Coroutine[Any, Any, T] | asyncio.Future[T], *, limit: float = 86_400.0) -> T:
        """Run until the coroutine returns, for at most ``limit`` virtual seconds.

        Raises:
            SimulationStalled, SimulationLivelock, SimulationTimeout: the simulation cannot go on.
        """
        self._deadline = self._now + limit
        return self.run_until_complete(coroutine)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        agent = context.get(_AGENT) or self.root
        if agent.alive:
            agent._ready.append(handle)
            self._consider(agent)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        agent = context.get(_AGENT) or self.root
        if agent.alive:
            self._sequence += 1
            heapq.heappush(self._timers, (float(max(when, self._now)), self._sequence, agent, handle))
        return handle

    def dispose(self) -> None:
        """End everything in silence and close the loop. Coroutines that never finished are closed here."""
        for agent in self._agents:
            agent.die()
        self._timers.clear()
        # The running loop meanwhile, as in life: a ``finally`` that asks asyncio for its loop would have one made else,
        # which nobody closes.
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            self._bury_all()
        finally:
            asyncio._set_running_loop(running)
        self._agents = [self.root]
        self._candidates.clear()
        self.close()

    def _bury_all(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(10):
                tasks = [task for agent in self._agents for task in agent.tasks]
                for agent in self._agents:
                    agent.tasks = []
                for task in tasks:
                    _bury(task)

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        context = options.get("context")
        agent = (_AGENT.get() if context is None else context.get(_AGENT)) or self.root
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        agent._adopt(task)
        return task

    def _note_error(self, _loop: object, details: dict[str, Any]) -> None:
        """Keep what nobody handled; the world raises it at its end. The dead may fail in silence."""
        agent = _AGENT.get()
        if agent is not None and not agent.alive:
            return
        error = details.get("exception")
        text = str(details.get("message", "unhandled"))
        if isinstance(error, BaseException):
            text += f": {type(error).__name__}: {error}{_where(error)}"
        self.errors.append(f"{self._now:.6f} {agent.name if agent else 'world'}: {text}")

    def _consider(self, agent: Agent) -> None:
        if agent._runnable():
            self._candidates[agent] = None
        else:
            self._candidates.pop(agent, None)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when their time comes."""

    def _run_once(self) -> None:
        """One step: the next callback of one agent, or a leap to the next timer."""
        self._ring_timers()
        if not self._candidates:
            self._leap()
            return
        candidates = self._candidates
        if len(candidates) == 1:
            agent = next(iter(candidates))
        else:
            agent = list(candidates)[self.rng.randrange(len(candidates))]
        handle = agent._next(self.rng)
        self._consider(agent)
        self.steps += 1
        self._instant += 1
        self.digest = zlib.crc32(agent._label, self.digest)
        if self.steps > self.max_steps or self._instant > self.max_instant:
            raise SimulationLivelock(
                f"{self.steps} steps, {self._instant} of them at time {self._now:.6f}; next is {handle!r} of {agent!r}"
            )
        if not handle.cancelled():
            handle._run()
            if self.after_step is not None:
                self.after_step()

    def _ring_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            _, _, agent, handle = heapq.heappop(self._timers)
            if agent.alive and not handle.cancelled():
                agent._ready.append(handle)
                self._consider(agent)

    def _leap(self) -> None:
        while self._timers and (self._timers[0][3].cancelled() or not self._timers[0][2].alive):
            heapq.heappop(self._timers)
        if not self._timers:
            parked = ", ".join(repr(agent) for agent in self._agents if agent._ready or agent._events) or "none"
            raise SimulationStalled(f"nothing can run at time {self._now:.6f}; agents with parked callbacks: {parked}")
        if self._timers[0][0] > self._deadline:
            raise SimulationTimeout(f"not finished by the virtual time {self._deadline:.3f} after {self.steps} steps")
        self._now = self._timers[0][0]
        self._instant = 0
        self.digest = zlib.crc32(self._now.hex().encode(), self.digest)


def settle(future: asyncio.Future[T], value: T) -> None:
    """Give a future its result unless it has one."""
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Give a future its error unless it is done; silent if its waiter never comes back to look."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def _bury(task: asyncio.Task[Any]) -> None:
    """Close a task that will never resume, without a word from asyncio about it."""
    if task.done():
        return
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    if coroutine is None:
        return
    for _ in range(100):
        try:
            coroutine.close()
            return
        except RuntimeError:
            continue  # its ``finally`` awaited something: close again from there
        except BaseException:
            return


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    with contextlib.suppress(AttributeError):
        while trace.tb_next is not None:
            trace = trace.tb_next
        return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    return ""
