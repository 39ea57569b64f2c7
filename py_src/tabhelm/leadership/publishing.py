"""What a leader publishes, and how its followers keep up: each value whole, newer ones only, gaps found and filled.

A value replaces the one before it, so a follower that missed some needs the newest alone. It finds out by the number of
the next one, or by a note of the newest number that leaders send while others are there; who joins is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tabhelm.json_text import loads
from tabhelm.leadership.bodies import Address
from tabhelm.listeners import Listeners
from tabhelm.messages import Resync, StateNote
from tabhelm.ports import Timer

if TYPE_CHECKING:
    from tabhelm.leadership.exchange import Exchange
    from tabhelm.leadership.serving import Served

REMIND = 5.0
"""Seconds after which a leader says again what the number of its newest value is."""
GRUDGE = 60.0
"""Seconds for which no leader of a lower epoch is believed after one has gone. Not for ever: epochs can be forged."""
SHORTLY = 0.05
"""Seconds in which several wishes to hear a value become one."""
WELCOME = 0.3
"""Seconds after which newcomers are told: later than who leads, or those that stand meanwhile would not know whom to
ask."""


@dataclass(frozen=True, slots=True)
class PublishedState:
    """What a leader published. ``epoch`` is ``None`` where nothing is fenced.

    ``current``: it leads still. Else nobody does, or the next leader has not published yet. ``missed``: so many values
    between this one and the one that was seen before it, of the same leader, were not seen.
    """

    value: Any
    tab_id: str
    epoch: int | None
    number: int
    current: bool
    missed: int = 0


class Follower:
    """One resource's state, as the tabs of one engine see it."""

    def __init__(self, failed: Callable[[str, BaseException], None], resource: str) -> None:
        self.resource = resource
        self.state: PublishedState | None = None
        self.at: Address | None = None
        """Whose state it is."""
        self.left_at: float | None = None
        """When it was found to lead no more; ``None`` while it does."""
        self.waiting: StateNote | None = None
        """Of a tenure that is not known to lead, yet."""
        self.users = 0
        """Elections that look at it."""
        self._listeners: Listeners[[PublishedState]] = Listeners(f"state subscriber of {resource}", failed)

    def subscribe(self, subscriber: Callable[[PublishedState], None]) -> Callable[[], None]:
        """Call back at every change; returns the way to stop. One that raises is dropped."""
        return self._listeners.add(subscriber)

    def show(self, state: PublishedState) -> None:
        if state == self.state:
            return
        self.state = state
        self._listeners.tell(state)


@dataclass(slots=True)
class _Published:
    """What one of our own tenures published last."""

    note: StateNote
    remind: Timer | None = None
    again: Timer | None = None

    def cancel(self) -> None:
        for timer in (self.remind, self.again):
            if timer is not None:
                timer.cancel()
        self.remind = self.again = None


class Publishing:
    """What this engine's tenures publish, and what its tabs follow."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._followers: dict[str, Follower] = {}
        self._published: dict[Served, _Published] = {}
        self._engines: frozenset[str] = frozenset()

    def close(self) -> None:
        for published in self._published.values():
            published.cancel()
        self._published.clear()

    def follow(self, resource: str) -> Follower:
        """The state of a resource, until ``unfollow`` was called as often as this."""
        follower = self._followers.get(resource)
        if follower is None:
            follower = self._followers[resource] = Follower(self._exchange.events.failed, resource)
            leader = self._exchange.leader(resource)
            if leader is not None:
                self._ask_again(resource, leader)
        follower.users += 1
        return follower

    def unfollow(self, follower: Follower) -> None:
        """One election less looks at it; the last one's end is its own: it keeps its state, and is told no more."""
        follower.users -= 1
        if follower.users <= 0 and self._followers.get(follower.resource) is follower:
            del self._followers[follower.resource]

    # -- our own tenures ----------------------------------------------------------------------------------------------

    def publish(self, served: Served, value: str) -> None:
        """This tenure's next value."""
        last = self._published.get(served)
        number = 1 if last is None else last.note.number + 1
        note = StateNote(
            self._exchange.engine_id, served.resource, served.connection, served.tab, served.epoch, number, value
        )
        if last is None:
            last = self._published[served] = _Published(note)
            served.tenure.on_revoked(lambda: self._ended(served))
            self._remind(last)
        last.note = note
        self._exchange.to_all(note)
        self.heard(note)

    def _ended(self, served: Served) -> None:
        published = self._published.pop(served, None)
        if published is not None:
            published.cancel()

    def _remind(self, published: _Published) -> None:
        def due() -> None:
            self._remind(published)
            if self._exchange.roster.engines():
                self._exchange.to_all(replace(published.note, value=""))

        published.remind = self._exchange.clock.call_later(REMIND, due)

    def wanted(self, wish: Resync) -> None:
        """Somebody has missed something."""
        for served, published in self._published.items():
            if (served.resource, served.connection) == (wish.resource, wish.leader):
                self._repeat(published)

    def _repeat(self, published: _Published, after: float = SHORTLY) -> None:
        if published.again is not None:
            return

        def due() -> None:
            published.again = None
            self._exchange.to_all(published.note)
            self.heard(published.note)

        published.again = self._exchange.clock.call_later(after, due)

    # -- what is followed ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """The roster changed."""
        engines = frozenset(self._exchange.roster.engines())
        if engines - self._engines:
            for published in self._published.values():
                self._repeat(published, WELCOME)  # whoever joined has heard none of it
        self._engines = engines
        for follower in list(self._followers.values()):
            self._look_at(follower)

    def _look_at(self, follower: Follower) -> None:
        if follower.waiting is None and follower.at is None:
            return
        leader = self._exchange.leader(follower.resource)
        note, follower.waiting = follower.waiting, None
        if note is not None:
            self._take(follower, leader, note)
        if follower.state is not None and follower.state.current != (follower.at == leader):
            follower.left_at = self._exchange.clock.monotonic() if follower.state.current else None
            follower.show(replace(follower.state, current=not follower.state.current, missed=0))

    def heard(self, note: StateNote) -> None:
        """A leader's word, perhaps late, perhaps not for the first time."""
        follower = self._followers.get(note.resource)
        if follower is not None:
            self._take(follower, self._exchange.leader(note.resource), note)

    def _take(self, follower: Follower, leader: Address | None, note: StateNote) -> None:
        if leader is None or (leader.leader, leader.epoch) != (note.leader, note.epoch):
            if leader is not None and note.epoch < leader.epoch:
                self._exchange.events.ignored("stale-state")
            elif follower.waiting is None or note.epoch >= follower.waiting.epoch:
                follower.waiting = note  # its beacon may be on the way
            return
        if self._is_older(follower, leader):
            self._exchange.events.ignored("stale-state")
            return
        known = follower.state.number if follower.state is not None and follower.at == leader else 0
        if note.number <= known:
            return
        if not note.value:
            self._ask_again(note.resource, leader)
            return
        follower.at, follower.left_at = leader, None
        missed = note.number - known - 1 if known else 0
        follower.show(PublishedState(loads(note.value), note.tab, note.epoch or None, note.number, True, missed))

    def _is_older(self, follower: Follower, leader: Address) -> bool:
        """Whether a leader whose epoch was higher has just gone: the roster believes again in one before it."""
        at, left_at = follower.at, follower.left_at
        if at is None or leader.domain != at.domain or leader.epoch >= at.epoch:
            return False
        return left_at is None or self._exchange.clock.monotonic() - left_at < GRUDGE

    def _ask_again(self, resource: str, leader: Address) -> None:
        self._exchange.to_leader(Resync(self._exchange.engine_id, resource, leader.leader))
