"""Who is told of what arrives on an engine's two channels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tabhelm.authority import ServerLeases
from tabhelm.fencing.epochs import EpochMemory
from tabhelm.leadership.exchange import Exchange
from tabhelm.locking import LockHub, SingleFlights
from tabhelm.messages import (
    Ask,
    Beacon,
    FlightEnd,
    Ignored,
    LeaderNote,
    LeaderSigns,
    LockAnswer,
    LockAsk,
    Message,
    Nudge,
    Questioning,
    decode,
)
from tabhelm.observe import ActingMonitor, Events
from tabhelm.ports import Clock
from tabhelm.presence import Beaconer, Roster
from tabhelm.queue import QueueHub


@dataclass(frozen=True, slots=True)
class Hearing:
    """``on_channel`` and ``on_queue_channel`` take in whatever arrives there."""

    clock: Clock
    events: Events
    roster: Roster
    beaconer: Beaconer
    memory: EpochMemory
    exchange: Exchange
    locks: LockHub
    flights: SingleFlights
    queues: QueueHub
    acting: ActingMonitor

    def on_channel(self, data: object) -> None:
        """That of our own protocol."""
        message = self._read(data)
        if isinstance(message, Beacon):
            self._remember(message.leaders)
            if self.roster.heard(message, self.clock.monotonic()):
                self.beaconer.greet()
        elif isinstance(message, Ask) and message.asked == self.roster.engine_id:
            self.beaconer.greet()  # by a timer, as all that we say: the answer of a frozen page would be a lie
        elif isinstance(message, Questioning):
            self.exchange.heard(message)
        elif isinstance(message, LockAsk):
            self.locks.asked(message)
        elif isinstance(message, LockAnswer):
            self.locks.answered(message)
        elif isinstance(message, FlightEnd):
            self.flights.heard(message)

    def on_queue_channel(self, data: object) -> None:
        """That of the queues, which all protocols of the app share."""
        message = self._read(data)
        if isinstance(message, Nudge):
            self.queues.heard(message)
        elif isinstance(message, LeaderSigns):
            self._signs(message)

    def _signs(self, message: LeaderSigns) -> None:
        concerned = self.roster.heard_signs(message, self.clock.monotonic())
        if concerned:
            self._remember(message.leaders)
        for resource in concerned:
            self.acting.look(resource)

    def _remember(self, leaders: Iterable[LeaderNote]) -> None:
        for leader in leaders:
            # A lease service's domain is its own: its epochs are none of this browser's store.
            if leader.domain and leader.authority != ServerLeases.name:
                self.memory.heard(leader.domain, leader.resource, leader.epoch)

    def _read(self, data: object) -> Message | None:
        try:
            return decode(data)
        except Ignored as ignored:
            self.events.ignored(ignored.reason)
            return None
