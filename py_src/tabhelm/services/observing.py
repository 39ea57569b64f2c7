"""What an engine observes of itself and the others: figures, acting leaders, updates, the history."""

from __future__ import annotations

from tabhelm.election.updates import UpdateWatch
from tabhelm.names import history_database
from tabhelm.observe import ActingMonitor, Events, History, Metrics, MetricsRecorder, Pseudonyms
from tabhelm.observe.history import HISTORY_SCHEMA
from tabhelm.ports import Ports
from tabhelm.presence import Roster
from tabhelm.reopening import ReopeningDatabase
from tabhelm.tasks import Tasks


class Observing:
    """``acting``, ``updates`` and ``history`` are for whoever has something to tell them, or to ask."""

    def __init__(self, ports: Ports, app: str, roster: Roster, events: Events, tasks: Tasks) -> None:
        self._app = app
        self._roster = roster
        self._clock = clock = ports.clock
        self._counted = MetricsRecorder(events, clock.monotonic)
        self.acting = ActingMonitor(
            events,
            clock,
            lambda resource: roster.count_acting(resource, clock.monotonic()),
            lambda: roster.signs.awake(clock.monotonic()),
            roster.follow,
        )
        self.updates = UpdateWatch(roster, clock, events)
        name = history_database(app)
        self._log = ReopeningDatabase(name, lambda: ports.databases.database(name, HISTORY_SCHEMA))
        self.history = History(self._log, clock, tasks, events, roster.engine_id, self._version_of)
        self._hidden = Pseudonyms(ports.entropy.token_bytes(16).hex())

    def metrics(self, *, locks_held: int) -> Metrics:
        """What was counted since this engine began."""
        now = self._clock.monotonic()
        return self._counted.snapshot(
            self._roster.acting(now),
            len(self._roster.tabs(now)),
            lambda name: self._hidden.resource(name, self._app),
            locks_held=locks_held,
        )

    def _version_of(self, tab_id: str) -> str:
        return next((note.version for note in self._roster.own_tabs() if note.tab == tab_id), "")

    def suspend(self) -> None:
        """Keep nothing open until ``resume``."""
        self.history.suspend()
        self.updates.suspend()
        self._log.suspend()

    def resume(self) -> None:
        self._log.resume()
        self.history.resume()

    async def close(self) -> None:
        """End everything."""
        self.acting.close()
        self.updates.close()
        await self.history.close()
        self._log.close()
