"""A MessagePort pair: structured messages in order, late; parked while the receiver is frozen, hung or suspended."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tabhelm.simulated.world import Pipe, SimulatedAgent, World


class MessagePort:
    """One end. Messages that arrive before ``receive`` is set wait for it."""

    def __init__(self, agent: SimulatedAgent, pipe: Pipe) -> None:
        self._agent = agent
        self._pipe = pipe
        self._peer: MessagePort | None = None
        self._receive: Callable[[Any], None] | None = None
        self._early: list[str] = []
        self.closed = False

    @staticmethod
    def pair(
        world: World, name: str, one: SimulatedAgent, two: SimulatedAgent, *, direct: bool = False
    ) -> tuple[MessagePort, MessagePort]:
        """``direct``: what the first one posts is handed over by a plain call, within one agent."""
        kind = DirectPort if direct else MessagePort
        first = kind(one, world.pipe(f"port:{name}:out", lambda: world.faults.port_delay))
        second = MessagePort(two, world.pipe(f"port:{name}:in", lambda: world.faults.port_delay))
        first._peer, second._peer = second, first
        return first, second

    def listen(self, receive: Callable[[Any], None]) -> None:
        """Set the one handler; what came before is delivered first."""
        self._receive = receive
        early, self._early = self._early, []
        for text in early:
            self._agent.post(self._arrive, text)

    def post(self, message: object) -> None:
        """Send; silently dropped once either end is closed or the sender is dead."""
        if not self.closed and self._agent.alive and self._peer is not None:
            self._pipe.send(self._peer._deliver, json.dumps(message))

    def close(self) -> None:
        self.closed = True

    def _deliver(self, text: str) -> None:
        self._agent.post(self._arrive, text)

    def _arrive(self, text: str) -> None:
        if self.closed:
            return
        if self._receive is None:
            self._early.append(text)
        else:
            self._receive(json.loads(text))


class DirectPort(MessagePort):
    """The page's end in the window host: said inside a handler, done before the handler returns."""

    def post(self, message: object) -> None:
        if not self.closed and self._agent.alive and self._peer is not None:
            self._peer._arrive(json.dumps(message))
