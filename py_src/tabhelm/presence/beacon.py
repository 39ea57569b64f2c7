"""Say who is here: at every change (coalesced), and again before others would begin to doubt it."""

from __future__ import annotations

from tabhelm.messages import Beacon, LeaderNote, LeaderSigns, Progress, TabNote, encode
from tabhelm.names import is_queue
from tabhelm.ports import Channel, Clock, Entropy, Timer
from tabhelm.presence.roster import BEAT, LEADER_BEAT, Roster
from tabhelm.presence.signs import TICK

COALESCE = 0.02
"""Seconds in which several changes become one beacon: twenty tabs that join at once are a few messages, not twenty
each."""
GREETING = (0.05, 0.25)
"""Seconds, drawn at random, after which a newcomer is told who is here: many newcomers at once get one answer."""


HIDDEN_BEAT = 60.0
"""Browsers throttle the timers of a hidden page to one a minute."""


class Beaconer:
    """Posts the roster's own part on the channel while there are own tabs; says goodbye once when the last has gone.

    Which queues we lead is said on the ``queue_channel`` too: engines of other protocols share the queues, and would
    take us for dead.
    """

    def __init__(
        self, roster: Roster, channel: Channel, clock: Clock, entropy: Entropy, *, queue_channel: Channel | None = None
    ) -> None:
        self._roster = roster
        self._channel = channel
        self._queue_channel = queue_channel
        self._clock = clock
        self._entropy = entropy
        self._led_queues = False
        self._suspended = False
        self._number = 0
        self._due: Timer | None = None
        self._due_at = 0.0
        self._beat: Timer | None = None
        self._tick: Timer | None = None
        self._said: object = None
        self._reports: list[tuple[str, Progress]] = []
        self._stop = roster.subscribe(self._changed)

    @property
    def said(self) -> int:
        """How many beacons were sent."""
        return self._number

    def close(self) -> None:
        """Say goodbye and be quiet."""
        self._stop()
        self.suspend()

    def suspend(self) -> None:
        """Say goodbye at once, and be quiet until ``resume``."""
        for timer in (self._due, self._beat, self._tick):
            if timer is not None:
                timer.cancel()
        self._due = self._beat = self._tick = None
        if self._said is not None:
            self._post((), (), BEAT)
            self._said = None
        self._suspended = True

    def resume(self) -> None:
        """Speak again, soon, if there is something to say."""
        if self._suspended:
            self._suspended = False
            self._changed()

    def greet(self) -> None:
        """An engine that we did not know has spoken: tell it who is here."""
        if self._due is None and self._roster.own_part() is not None and not self._suspended:
            self._speak_in(self._entropy.uniform(*GREETING))

    def _changed(self) -> None:
        if self._suspended:
            return
        # Others' changes come through here too; only a change of our own part is worth a message.
        own = self._roster.own_part()
        if own != self._said:
            if own is None:
                self.speak()  # at once: an engine whose last page went to the cache is suspended in some milliseconds
            else:
                self._speak_in(COALESCE)
        if self._tick is None:
            self._tick = self._clock.call_later(TICK, self._look)

    def _speak_in(self, seconds: float) -> None:
        """Sooner than what is due, if anything is, but never later: others' news must not put off our own."""
        at = self._clock.monotonic() + seconds
        if self._due is not None:
            if self._due_at <= at:
                return
            self._due.cancel()
        self._due, self._due_at = self._clock.call_later(seconds, self.speak), at

    def speak(self) -> None:
        """Say now who is here."""
        if self._suspended:
            return
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        tabs, leaders = self._roster.own_notes(self._clock.monotonic())
        own = self._roster.own_part()
        if own is None and self._said is None:
            return
        self._said = own
        reports = [(note.health, note.progress) for note in leaders]
        news, self._reports = reports != self._reports, reports
        pause = LEADER_BEAT if leaders else BEAT
        # A hidden page promises less, though it tries to speak as often as ever.
        self._post(tabs, leaders, max(pause, HIDDEN_BEAT) if self._roster.throttled else pause)
        if tabs:
            self._beat = self._clock.call_later(pause, self.speak)
        if news:
            self._roster.tell()  # our own tabs hear of their leaders' progress as often as everybody else

    def _post(self, tabs: tuple[TabNote, ...], leaders: tuple[LeaderNote, ...], pause: float) -> None:
        self._number += 1
        self._channel.post(
            encode(Beacon(self._roster.engine_id, self._number, pause, tabs, leaders, self._roster.build))
        )
        queues = tuple(note for note in leaders if is_queue(note.resource))
        if self._queue_channel is not None and (queues or self._led_queues):
            self._led_queues = bool(queues)
            self._queue_channel.post(encode(LeaderSigns(self._roster.engine_id, self._number, pause, queues)))

    def _look(self) -> None:
        self._tick = None
        self._roster.tick(self._clock.monotonic())
        if self._roster.tabs(self._clock.monotonic()):
            self._tick = self._clock.call_later(TICK, self._look)
