"""What all tabs of one engine share, and how it is given up for a while with its page."""

from __future__ import annotations

from collections.abc import Iterable

from tabhelm.authority import Authorities, LeaseAuthority, Rivals, ServerLeases, WebLocksAuthority
from tabhelm.election.updates import UpdateWatch
from tabhelm.errors import DatabaseDenied, DatabaseError
from tabhelm.fencing.epochs import DOMAIN_KEY, EpochIssuer, EpochMemory
from tabhelm.fencing.schema import FENCING, SCHEMA
from tabhelm.leadership.election import ElectionServices
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
from tabhelm.names import channel_name, database_name, history_database, queue_channel
from tabhelm.observe import (
    ActingMonitor,
    Degraded,
    Events,
    History,
    LeaseTrouble,
    Metrics,
    MetricsRecorder,
    Pseudonyms,
)
from tabhelm.observe.history import HISTORY_SCHEMA
from tabhelm.ports import Ports, Transaction
from tabhelm.ports.database import DatabaseEvent, KeyRange
from tabhelm.presence import Beaconer, EngineWatch, Roster, Suspects
from tabhelm.queue import QueueHub
from tabhelm.queue.shared import QueueServices
from tabhelm.reopening import ReopeningChannel, ReopeningDatabase
from tabhelm.storage_watch import StorageWatch
from tabhelm.tasks import Tasks


class Services:
    """One database connection, one channel, one roster, one memory of epochs for all tabs of an engine.

    ``in_page``: the engine runs in the page of its only tab, and freezes, hangs and is throttled with it. ``build_id``
    is that of its bundle, if it has one.
    """

    def __init__(
        self, ports: Ports, app: str, protocol: int, engine_id: str, in_page: bool = False, build_id: str = ""
    ) -> None:
        self.ports = ports
        self.app = app
        self.protocol = protocol
        self.engine_id = engine_id
        self.in_page = in_page
        self.events = Events()
        self.tasks = Tasks(self.events.failed)
        self.roster = Roster(engine_id, in_page=in_page, build=build_id)
        self.memory = EpochMemory()
        self._blocked = False
        """Whether the database was blocked when it was last heard of."""
        name = database_name(app)
        self.database = ReopeningDatabase(name, lambda: ports.databases.database(name, SCHEMA))
        self.storage = StorageWatch(self.database, ports.entropy, self.tasks, self.events)
        self.database.subscribe(self._storage_changed)
        self.channel = ReopeningChannel(lambda: ports.channels.open(channel_name(app, protocol)))
        self.channel.subscribe(self._heard_beacon)
        self.queue_channel = ReopeningChannel(lambda: ports.channels.open(queue_channel(app)))
        self.queue_channel.subscribe(self._heard_nudge)
        self.beaconer = Beaconer(
            self.roster, self.channel, ports.clock, ports.entropy, queue_channel=self.queue_channel
        )
        self.watch = EngineWatch(self.roster, ports.locks, ports.clock, self.tasks, app, protocol)
        self.suspects = Suspects(self.roster, ports.locks, ports.clock, self.tasks)
        self.locks = LockHub(
            ports.locks,
            ports.clock,
            self.events,
            app=app,
            protocol=protocol,
            engine_id=engine_id,
            post=self.channel.post,
            others=lambda: bool(self.roster.engines()),
        )
        self.flights = SingleFlights(self.locks)
        issuer = EpochIssuer(self.database, ports.clock, ports.entropy, self.memory)
        self.exchange = Exchange(self.channel, self.roster, ports.clock, ports.entropy, self.events, self.tasks)
        self.lease = LeaseAuthority(
            self.database, issuer, ports.locks, ports.clock, ports.entropy, self.tasks, protocol
        )
        self.roster.subscribe(self._look_at_leaders)
        self.elections = ElectionServices(
            clock=ports.clock,
            entropy=ports.entropy,
            roster=self.roster,
            watch=self.watch,
            authorities=Authorities(
                [
                    WebLocksAuthority(
                        ports.locks, issuer, protocol, Rivals(self.database, issuer, ports.locks, ports.clock)
                    ),
                    self.lease,
                ],
                lambda *change: self.events.emit(Degraded(*change)),
                ServerLeases(
                    self.lease.tools,
                    self.lease.rivals,
                    ports.http,
                    ports.entropy,
                    protocol,
                    lambda *trouble: self.events.emit(LeaseTrouble(*trouble)),
                ),
            ),
            events=self.events,
            tasks=self.tasks,
            http=ports.http,
            exchange=self.exchange,
            storage_lost=self.storage.lost,
        )
        queues = QueueServices(ports.clock, ports.entropy, ports.http, self.events, self.tasks.start)
        self.queues = QueueHub(engine_id, self.queue_channel, self.database, queues)
        self.storage.wiped.add(self._storage_wiped)
        self._observe()

    def _observe(self) -> None:
        clock, roster = self.ports.clock, self.roster
        self.counted = MetricsRecorder(self.events, clock.monotonic)
        self.acting = ActingMonitor(
            self.events,
            clock,
            lambda resource: roster.count_acting(resource, clock.monotonic()),
            lambda: roster.signs.awake(clock.monotonic()),
            roster.follow,
        )
        self.updates = UpdateWatch(roster, clock, self.events)
        name = history_database(self.app)
        self._log = ReopeningDatabase(name, lambda: self.ports.databases.database(name, HISTORY_SCHEMA))
        self.history = History(self._log, clock, self.tasks, self.events, self.engine_id, self._version_of)
        self._hidden = Pseudonyms(self.ports.entropy.token_bytes(16).hex())

    def metrics(self) -> Metrics:
        """What was counted since this engine began."""
        now = self.ports.clock.monotonic()
        return self.counted.snapshot(
            self.roster.acting(now),
            len(self.roster.tabs(now)),
            lambda name: self._hidden.resource(name, self.app),
            locks_held=self.locks.count,
        )

    async def count_epochs(self) -> int:
        """How many records of epochs the database has: to find out whether it answers.

        Raises:
            DatabaseError: it does not.
        """

        async def body(tx: Transaction) -> int:
            return await tx.count(FENCING, KeyRange("epoch:", "epoch;"))

        return await self.database.transaction([FENCING], "readonly", body)

    def _version_of(self, tab_id: str) -> str:
        return next((note.version for note in self.roster.own_tabs() if note.tab == tab_id), "")

    async def storage_denied(self) -> str | None:
        """Why this context may not use IndexedDB; ``None`` if it may, or if the answer did not come in time."""

        async def body(tx: Transaction) -> None:
            await tx.get(FENCING, DOMAIN_KEY)

        try:
            await self.database.transaction([FENCING], "readonly", body)
        except DatabaseDenied as denied:
            return str(denied)
        except DatabaseError:
            pass  # it may come back
        return None

    async def close(self) -> None:
        """End everything: no task, timer, channel or connection is left."""
        self.exchange.close()
        self.queues.close()
        self.acting.close()
        self.updates.close()
        await self.history.close()
        await self.lease.close()
        await self.tasks.close()
        self.beaconer.close()
        self.channel.close()
        self.queue_channel.close()
        self.database.close()
        self._log.close()

    def suspend(self) -> None:
        """The engine's page leaves, perhaps into the back/forward cache: say goodbye, and keep nothing open.

        Synchronous: it runs inside ``pagehide``. Whose locks are held or asked for is the lock desk's to drop, before.
        Harmless when it is suspended.
        """
        self.history.suspend()
        self.beaconer.suspend()
        self.watch.suspend()
        self.roster.forget_others()
        self.updates.suspend()
        self.channel.suspend()
        self.queue_channel.suspend()
        self.database.suspend()
        self._log.suspend()

    def resume(self) -> None:
        """The page was restored: open everything again. Harmless when it is open."""
        self.channel.resume()
        self.queue_channel.resume()
        self.database.resume()
        self._log.resume()
        self.history.resume()
        self.beaconer.resume()
        self.queues.storage_changed()  # whatever was said meanwhile, we did not hear it
        self.storage.look()

    def _heard_beacon(self, data: object) -> None:
        message = self._read(data)
        if isinstance(message, Beacon):
            self._remember(message.leaders)
            if self.roster.heard(message, self.ports.clock.monotonic()):
                self.beaconer.greet()
        elif isinstance(message, Ask) and message.asked == self.engine_id:
            self.beaconer.greet()  # by a timer, as all that we say: the answer of a frozen page would be a lie
        elif isinstance(message, Questioning):
            self.exchange.heard(message)
        elif isinstance(message, LockAsk):
            self.locks.asked(message)
        elif isinstance(message, LockAnswer):
            self.locks.answered(message)
        elif isinstance(message, FlightEnd):
            self.flights.heard(message)

    def _heard_nudge(self, data: object) -> None:
        message = self._read(data)
        if isinstance(message, Nudge):
            self.queues.heard(message)
        elif isinstance(message, LeaderSigns):
            self._heard_signs(message)

    def _heard_signs(self, message: LeaderSigns) -> None:
        concerned = self.roster.heard_signs(message, self.ports.clock.monotonic())
        if concerned:
            self._remember(message.leaders)
        for resource in concerned:
            self.acting.look(resource)

    def _look_at_leaders(self) -> None:
        self.lease.look(self.roster.led(), self.roster.throttled)

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

    def _storage_wiped(self) -> None:
        self.queues.storage_changed()
        self.tasks.start(self.queues.look(), "look at the queues")

    def _storage_changed(self, change: DatabaseEvent) -> None:
        if change == "blocked":
            self._blocked = True
        elif change != "opened" or self._blocked:
            self._blocked = False
            self.queues.storage_changed()
