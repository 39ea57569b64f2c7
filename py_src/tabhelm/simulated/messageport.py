"""A MessagePort pair: structured messages in order, late; parked while the receiver is frozen, hung or suspended."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tabhelm.ports.database import Opaque

if TYPE_CHECKING:
    from tabhelm.simulated.world import Pipe, SimulatedAgent, World


class Parcel:
    """A message on its way: a copy, as structured clone makes one of JSON and of ``Opaque`` values."""

    def __init__(self, message: object) -> None:
        self._values: list[Any] = []
        self._text = json.dumps(message, default=self._pack)

    def _pack(self, value: object) -> dict[str, int]:
        if not isinstance(value, Opaque):
            raise TypeError(f"a message cannot hold a {type(value).__name__}")
        self._values.append(copy.deepcopy(value.value))
        return {_PLACE: len(self._values) - 1}

    def open(self) -> Any:
        """The message, as it arrives."""
        return json.loads(self._text, object_hook=self._unpack)

    def _unpack(self, found: dict[str, Any]) -> Any:
        return Opaque(self._values[found[_PLACE]]) if _PLACE in found else found


_PLACE = "\0opaque"


class MessagePort:
    """One end. Messages that arrive before ``receive`` is set wait for it."""

    def __init__(self, agent: SimulatedAgent, pipe: Pipe) -> None:
        self._agent = agent
        self._pipe = pipe
        self._peer: MessagePort | None = None
        self._receive: Callable[[Any], None] | None = None
        self._early: list[Parcel] = []
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
        for parcel in early:
            self._agent.post(self._arrive, parcel)

    def post(self, message: object) -> None:
        """Send; silently dropped once either end is closed or the sender is dead."""
        if not self.closed and self._agent.alive and self._peer is not None:
            self._pipe.send(self._peer._deliver, Parcel(message))

    def close(self) -> None:
        self.closed = True

    def _deliver(self, parcel: Parcel) -> None:
        self._agent.post(self._arrive, parcel)

    def _arrive(self, parcel: Parcel) -> None:
        if self.closed:
            return
        if self._receive is None:
            self._early.append(parcel)
        else:
            self._receive(parcel.open())


class DirectPort(MessagePort):
    """The page's end in the window host: said inside a handler, done before the handler returns."""

    def post(self, message: object) -> None:
        if not self.closed and self._agent.alive and self._peer is not None:
            self._peer._arrive(Parcel(message))
