"""The network between agents and simulated receivers: late, lossy, and not stopped by the sender's death."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tabhelm.errors import Unreachable
from tabhelm.ports.http import HttpAnswer
from tabhelm.simulated.faults import draw
from tabhelm.simulated.loop import settle

if TYPE_CHECKING:
    from tabhelm.simulated.world import SimulatedAgent, World


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a receiver gets; header names are lower case. ``sender`` names the agent: for tests, no server knows it."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: str | None
    sender: str


Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


@dataclass(slots=True)
class NextAnswer:
    """A fault for one coming request, in order: answer instead of the receiver, or lose something on the way."""

    answer: HttpAnswer | None = None
    lose_request: bool = False
    lose_answer: bool = False
    delay: float = 0.0


class Network:
    """Routes by URL prefix (the longest wins). ``unreachable`` holds prefixes that answer nobody."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.stream("network")
        self.unreachable: set[str] = set()
        self.script: list[NextAnswer] = []
        self.requests: list[HttpRequest] = []
        """What reached a receiver, in order."""
        self._routes: dict[str, Handler] = {}

    def route(self, prefix: str, handler: Handler) -> None:
        """Let an async handler answer everything below the prefix."""
        self._routes[prefix] = handler

    def reach(self, url: str) -> Handler | None:
        if any(url.startswith(prefix) for prefix in self.unreachable):
            return None
        fitting = [prefix for prefix in self._routes if url.startswith(prefix)]
        return self._routes[max(fitting, key=len)] if fitting else None

    def delay(self) -> float:
        return draw(self.rng, self.world.faults.http_delay)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability


class _Exchange:
    """One request on its way, at the receiver and back."""

    def __init__(self, network: Network, agent: SimulatedAgent, request: HttpRequest) -> None:
        self.network = network
        self.agent = agent
        self.request = request
        self.future: asyncio.Future[HttpAnswer | None] = agent.loop.create_future()
        self.arrived = False
        self.aborted = False
        self.fault = network.script.pop(0) if network.script else NextAnswer()

    def depart(self) -> None:
        self._later(self.network.delay() + self.fault.delay, self._arrive)

    def abort(self) -> None:
        """The sender gave up. What is on its way may be processed nevertheless."""
        if not self.arrived and self.network.chance(0.5):
            self.aborted = True

    def _arrive(self) -> None:
        world, handler = self.network.world, self.network.reach(self.request.url)
        if self.aborted:
            return
        self.arrived = True
        if handler is None or self.fault.lose_request or self.network.chance(world.faults.http_lose_request):
            world.note(self.agent.name, f"request lost {self.request.method} {self.request.url}")
            self._later(self.network.delay(), self._return, None)
            return
        self.network.requests.append(self.request)
        if self.fault.answer is not None:
            self._later(self.network.delay(), self._return, self.fault.answer)
            return
        world.loop.create_task(self._serve(handler), context=world.loop.root.context())

    async def _serve(self, handler: Handler) -> None:
        answer = await handler(self.request)
        world = self.network.world
        if self.fault.lose_answer or self.network.chance(world.faults.http_lose_answer):
            world.note(self.agent.name, f"answer lost {self.request.method} {self.request.url}")
            return  # silence: the sender waits for its timeout
        self._later(self.network.delay(), self._return, answer)

    def _return(self, answer: HttpAnswer | None) -> None:
        self.agent.post(settle, self.future, answer)

    def _later(self, delay: float, callback: Callable[..., None], *args: object) -> None:
        loop = self.network.world.loop
        loop.call_later(delay, callback, *args, context=loop.root.context())


class SimulatedHttp:
    """The port of one agent."""

    def __init__(self, network: Network, agent: SimulatedAgent) -> None:
        self._network = network
        self._agent = agent

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: str | None = None, timeout: float
    ) -> HttpAnswer:
        lowered = {name.lower(): value for name, value in headers.items()}
        exchange = _Exchange(self._network, self._agent, HttpRequest(method, url, lowered, body, self._agent.name))
        future = exchange.future
        timer = self._agent.clock.call_later(timeout, lambda: settle(future, None))
        if self._agent.online:
            exchange.depart()
        else:
            self._agent.post(settle, future, None)
        try:
            answer = await future
        except asyncio.CancelledError:
            exchange.abort()
            raise
        finally:
            timer.cancel()
        if answer is None:
            exchange.abort()
            why = f"no answer (offline, lost, or not within {timeout} s)"
            raise Unreachable(f"{method} {url}: {why}", offline=not self._agent.online)
        return answer

    def farewell(self, method: str, url: str, *, headers: Mapping[str, str]) -> None:
        lowered = {name.lower(): value for name, value in headers.items()}
        if self._agent.online:
            _Exchange(self._network, self._agent, HttpRequest(method, url, lowered, None, self._agent.name)).depart()
