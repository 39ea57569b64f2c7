"""BroadcastChannel: text to every other channel object of the name; late, sometimes lost, in order per pair.

Handlers run even inside a frozen agent (as browsers do), but not in a hung one until it wakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tabhelm.simulated.world import Pipe, SimulatedAgent, World


class ChannelHub:
    """The browser's side: who has which channel open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.stream("channel-loss")
        self.open: dict[str, list[SimulatedChannel]] = {}

    def post(self, name: str, value: object, sender: SimulatedChannel | None = None) -> None:
        """Send anything to every open channel of the name but the sender."""
        for receiver in list(self.open.get(name, [])):
            if receiver is sender:
                continue
            if self.rng.random() < self.world.faults.channel_loss:
                continue
            receiver.pipe(sender).send(receiver.arrive, value)


class SimulatedChannel:
    """One channel object."""

    def __init__(self, hub: ChannelHub, agent: SimulatedAgent, name: str, number: int) -> None:
        self._hub = hub
        self._agent = agent
        self._name = name
        self._number = number
        self._callback: Callable[[object], None] | None = None
        self._pipes: dict[SimulatedChannel | None, Pipe] = {}
        self.closed = False
        hub.open.setdefault(name, []).append(self)
        agent.on_death.append(self.close)

    def post(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"channel {self._name!r} carries text, not {type(text).__name__}")
        if not self.closed and self._agent.alive:
            self._hub.post(self._name, text, self)

    def subscribe(self, callback: Callable[[object], None]) -> None:
        self._callback = callback

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._hub.open[self._name].remove(self)

    def pipe(self, sender: SimulatedChannel | None) -> Pipe:
        """The way from one sender to here."""
        if sender not in self._pipes:
            world = self._hub.world
            source = "outside" if sender is None else f"{sender._agent.name}.{sender._number}"
            name = f"channel:{self._name}:{source}>{self._agent.name}.{self._number}"
            self._pipes[sender] = world.pipe(name, lambda: world.faults.channel_delay)
        return self._pipes[sender]

    def arrive(self, value: object) -> None:
        """A message is here; a page in the back/forward cache with an open channel is evicted by it."""
        if self.closed:
            return
        if self._agent.evict is not None:
            self._hub.world.note(self._agent.name, f"evicted from the bfcache: message on {self._name}")
            self._agent.evict()
        self._agent.post_event(self._handle, value)

    def _handle(self, value: object) -> None:
        if not self.closed and self._callback is not None:
            self._callback(value)


class SimulatedChannels:
    """The port of one agent."""

    def __init__(self, hub: ChannelHub, agent: SimulatedAgent) -> None:
        self._hub = hub
        self._agent = agent
        self._opened = 0

    def open(self, name: str) -> SimulatedChannel:
        self._opened += 1
        return SimulatedChannel(self._hub, self._agent, name, self._opened)
