"""Does another tab run a newer version of the app? Then this one should be reloaded some time soon."""

from __future__ import annotations

from tabhelm.election.versions import version_key
from tabhelm.observe import Events, UpdateAvailable
from tabhelm.ports import Clock, Timer
from tabhelm.presence import Roster

PAUSE = 0.1
"""Seconds after a change of the roster: many tabs that join at once are looked at once, and one that has only just
joined listens by then."""


class UpdateWatch:
    """Tells each tab of this engine once of each newer version. Versions without numbers are not compared."""

    def __init__(self, roster: Roster, clock: Clock, events: Events) -> None:
        self._roster = roster
        self._clock = clock
        self._events = events
        self._told: dict[str, tuple[int, ...]] = {}
        self._seen: object = None
        self._timer: Timer | None = None
        self._unsubscribe = roster.subscribe(self._changed)

    def close(self) -> None:
        """Look no more."""
        self._unsubscribe()
        self.suspend()

    def suspend(self) -> None:
        """Look no more until the roster changes again: the page leaves, perhaps for a while."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _changed(self) -> None:
        if self._timer is None and len({version for version, _ in self._roster.versions()}) > 1:
            self._timer = self._clock.call_later(PAUSE, self._look)

    def _look(self) -> None:
        self._timer = None
        own = self._roster.own_tabs()
        seen = (self._roster.versions(), own)
        if not seen[0] or seen == self._seen:
            return  # everybody may have gone since
        self._seen = seen
        newest, build = max(seen[0], key=lambda pair: version_key(pair[0]))
        key = version_key(newest)
        living = {note.connection for note in own}
        self._told = {connection: told for connection, told in self._told.items() if connection in living}
        for note in own:
            mine = version_key(note.version)
            if mine and mine < key and self._told.get(note.connection, ()) < key:
                self._told[note.connection] = key
                self._events.emit(UpdateAvailable(note.tab, note.connection, newest, build))
