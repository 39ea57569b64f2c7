"""What goes between a leader and those who ask it: within one engine by a plain call, else over the channel.

The channel may lose, double and delay. A question carries an id that is drawn once, names the very tenure that it is
put to, and is put again until something is heard; the tenure remembers what it has begun, and begins nothing twice.
"""

from __future__ import annotations

import asyncio

from tabhelm.errors import NotCloneable
from tabhelm.leadership.asking import Asking
from tabhelm.leadership.bodies import Address
from tabhelm.leadership.publishing import Publishing
from tabhelm.leadership.serving import Served, Serving
from tabhelm.leadership.tenure import Tenure
from tabhelm.messages import MAX_TEXT, Accepted, Questioning, Reply, Request, Resync, StateNote, encode
from tabhelm.names import MAX_NAME
from tabhelm.observe import Events
from tabhelm.ports import Channel, Clock, Entropy
from tabhelm.presence import Roster
from tabhelm.tasks import Tasks

LONGEST = MAX_TEXT - 8 * MAX_NAME
"""Characters of a question, without whom it is put to: that one's name is not known when it is measured."""


class Exchange:
    """One for each engine: ``asking`` is the side of its tabs that ask, ``serving`` and ``publishing`` of those that
    lead."""

    def __init__(
        self, channel: Channel, roster: Roster, clock: Clock, entropy: Entropy, events: Events, tasks: Tasks
    ) -> None:
        self.engine_id = roster.engine_id
        self.roster = roster
        self.clock = clock
        self.entropy = entropy
        self.events = events
        self.tasks = tasks
        self._channel = channel
        self.serving = Serving(self)
        self.asking = Asking(self)
        self.publishing = Publishing(self)
        self._unsubscribe = roster.subscribe(self._look)

    def close(self) -> None:
        """Nothing is asked or answered any more: open questions fail."""
        self._unsubscribe()
        self.asking.close()
        self.publishing.close()

    def open(self, resource: str, tenure: Tenure, tab: str, connection: str) -> Served:
        """A tenure begins: what it serves and publishes."""
        return self.serving.open(resource, tenure, tab, connection)

    def leader(self, resource: str) -> Address | None:
        """The tenure that is said to lead: the highest epoch that was heard of."""
        info = self.roster.leader(resource, self.clock.monotonic())
        return None if info is None else Address(info.connection_id, info.epoch, info.domain)

    def listed(self, resource: str, address: Address) -> bool:
        """Whether this tenure is still heard of, however long ago: it is late, but not known to be over."""
        leaders = self.roster.leaders_of(resource, self.clock.monotonic())
        return any((info.connection_id, info.epoch) == (address.leader, address.epoch) for info in leaders)

    def own(self, connection: str) -> bool:
        """Whether this is a tab of ours."""
        tabs = self.roster.own_tabs()
        return any(note.connection == connection for note in tabs)

    @staticmethod
    def check_length(message: Request) -> None:
        """Whether anybody would read it, whoever is to lead then.

        Raises:
            NotCloneable: it is too long.
        """
        if (length := len(encode(message))) > LONGEST:
            what = "the question, with what its tab says of itself,"
            raise NotCloneable(f"{what} takes {length:,} characters: at most {LONGEST:,} are read")

    def to_leader(self, message: Request | Resync) -> None:
        """Give it to the tenure that it names, wherever that is."""
        if self.own(message.leader):
            self._soon(message)
        else:
            self._channel.post(encode(message))

    def to_asker(self, message: Accepted | Reply) -> None:
        """Give it to the engine that it names."""
        if message.to == self.engine_id:
            self._soon(message)
        else:
            self._channel.post(encode(message))

    def to_all(self, note: StateNote) -> None:
        """Tell every other engine."""
        self._channel.post(encode(note))

    def heard(self, message: Questioning) -> None:
        """Something that came over the channel. What is for others is passed over."""
        match message:
            case Request():
                self.serving.asked(message)
            case Accepted() if message.to == self.engine_id:
                self.asking.accepted(message)
            case Reply() if message.to == self.engine_id:
                self.asking.replied(message)
            case StateNote():
                self.publishing.heard(message)
            case Resync():
                self.publishing.wanted(message)

    def _soon(self, message: Request | Resync | Accepted | Reply) -> None:
        # Never inside the caller: whoever asks has not even begun to wait.
        asyncio.get_running_loop().call_soon(self.heard, message)

    def _look(self) -> None:
        self.asking.look()
        self.publishing.look()
