"""What all tabs of one engine share: how it is wired, given up for a while with its page, and ended."""

from __future__ import annotations

from tabhelm.authority import Authorities, LeaseAuthority, Rivals, ServerLeases, WebLocksAuthority
from tabhelm.errors import DatabaseDenied, DatabaseError
from tabhelm.fencing.epochs import DOMAIN_KEY, EpochIssuer, EpochMemory
from tabhelm.fencing.schema import FENCING, SCHEMA
from tabhelm.leadership.election import ElectionServices
from tabhelm.leadership.exchange import Exchange
from tabhelm.locking import LockHub, SingleFlights
from tabhelm.names import channel_name, database_name, queue_channel
from tabhelm.observe import Degraded, Events, LeaseTrouble, Metrics
from tabhelm.ports import Ports, Transaction
from tabhelm.ports.database import DatabaseEvent, KeyRange
from tabhelm.presence import Beaconer, EngineWatch, Roster, Suspects
from tabhelm.queue import QueueHub
from tabhelm.queue.shared import QueueServices
from tabhelm.reopening import ReopeningChannel, ReopeningDatabase
from tabhelm.services.hearing import Hearing
from tabhelm.services.observing import Observing
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
        self._open_storage()
        self._meet_others()
        self._share_locks()
        self._hold_elections()
        queues = QueueServices(ports.clock, ports.entropy, ports.http, self.events, self.tasks.start)
        self.queues = QueueHub(engine_id, self.queue_channel, self.database, queues)
        self.storage.wiped.add(self._storage_wiped)
        self.observing = Observing(ports, app, self.roster, self.events, self.tasks)
        self.acting = self.observing.acting
        self.history = self.observing.history
        self._listen()

    # -- wiring -------------------------------------------------------------------------------------------------------

    def _open_storage(self) -> None:
        name = database_name(self.app)
        self.database = ReopeningDatabase(name, lambda: self.ports.databases.database(name, SCHEMA))
        self.storage = StorageWatch(self.database, self.ports.entropy, self.tasks, self.events)
        self._blocked = False
        """Whether the database was blocked when it was last heard of."""
        self.database.subscribe(self._storage_changed)

    def _meet_others(self) -> None:
        ports = self.ports
        self.channel = ReopeningChannel(lambda: ports.channels.open(channel_name(self.app, self.protocol)))
        self.queue_channel = ReopeningChannel(lambda: ports.channels.open(queue_channel(self.app)))
        self.beaconer = Beaconer(
            self.roster, self.channel, ports.clock, ports.entropy, queue_channel=self.queue_channel
        )
        self.watch = EngineWatch(self.roster, ports.locks, ports.clock, self.tasks, self.app, self.protocol)
        self.suspects = Suspects(self.roster, ports.locks, ports.clock, self.tasks)
        self.exchange = Exchange(self.channel, self.roster, ports.clock, ports.entropy, self.events, self.tasks)

    def _share_locks(self) -> None:
        self.locks = LockHub(
            self.ports.locks,
            self.ports.clock,
            self.events,
            app=self.app,
            protocol=self.protocol,
            engine_id=self.engine_id,
            post=self.channel.post,
            others=lambda: bool(self.roster.engines()),
        )
        self.flights = SingleFlights(self.locks)

    def _hold_elections(self) -> None:
        ports = self.ports
        issuer = EpochIssuer(self.database, ports.clock, ports.entropy, self.memory)
        rivals = Rivals(self.database, issuer, ports.locks, ports.clock)
        web_locks = WebLocksAuthority(ports.locks, issuer, self.protocol, rivals)
        self.lease = LeaseAuthority(
            self.database, issuer, ports.locks, ports.clock, ports.entropy, self.tasks, self.protocol
        )
        self.roster.subscribe(lambda: self.lease.look(self.roster.led(), self.roster.throttled))
        server_leases = ServerLeases(
            self.lease.tools,
            self.lease.rivals,
            ports.http,
            ports.entropy,
            self.protocol,
            lambda *trouble: self.events.emit(LeaseTrouble(*trouble)),
        )
        self.elections = ElectionServices(
            clock=ports.clock,
            entropy=ports.entropy,
            roster=self.roster,
            watch=self.watch,
            authorities=Authorities(
                [web_locks, self.lease], lambda *change: self.events.emit(Degraded(*change)), server_leases
            ),
            events=self.events,
            tasks=self.tasks,
            http=ports.http,
            exchange=self.exchange,
            storage_lost=self.storage.lost,
        )

    def _listen(self) -> None:
        hearing = Hearing(
            self.ports.clock,
            self.events,
            self.roster,
            self.beaconer,
            self.memory,
            self.exchange,
            self.locks,
            self.flights,
            self.queues,
            self.acting,
        )
        self.channel.subscribe(hearing.on_channel)
        self.queue_channel.subscribe(hearing.on_queue_channel)

    # -- being asked --------------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """What was counted since this engine began."""
        return self.observing.metrics(locks_held=self.locks.count)

    async def count_epochs(self) -> int:
        """How many records of epochs the database has: to find out whether it answers.

        Raises:
            DatabaseError: it does not.
        """

        async def body(tx: Transaction) -> int:
            return await tx.count(FENCING, KeyRange("epoch:", "epoch;"))

        return await self.database.transaction([FENCING], "readonly", body)

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

    # -- ending, and resting in the back/forward cache ----------------------------------------------------------------

    async def close(self) -> None:
        """End everything: no task, timer, channel or connection is left."""
        self.exchange.close()
        self.queues.close()
        await self.observing.close()
        await self.lease.close()
        await self.tasks.close()
        self.beaconer.close()
        self.channel.close()
        self.queue_channel.close()
        self.database.close()

    def suspend(self) -> None:
        """The engine's page leaves, perhaps into the back/forward cache: say goodbye, and keep nothing open.

        Synchronous: it runs inside ``pagehide``, or in the microtasks right after. Whose locks are held or asked for is
        the lock desk's to drop, before. Harmless when it is suspended.
        """
        self.beaconer.suspend()
        self.watch.suspend()
        self.roster.forget_others()
        self.channel.suspend()
        self.queue_channel.suspend()
        self.database.suspend()
        self.observing.suspend()

    def resume(self) -> None:
        """The page was restored: open everything again. Harmless when it is open."""
        self.channel.resume()
        self.queue_channel.resume()
        self.database.resume()
        self.observing.resume()
        self.beaconer.resume()
        self.queues.storage_changed()  # whatever was said meanwhile, we did not hear it
        self.storage.look()

    # -- the database -------------------------------------------------------------------------------------------------

    def _storage_wiped(self) -> None:
        self.queues.storage_changed()
        self.tasks.start(self.queues.look(), "look at the queues")

    def _storage_changed(self, change: DatabaseEvent) -> None:
        if change == "blocked":
            self._blocked = True
        elif change != "opened" or self._blocked:
            self._blocked = False
            self.queues.storage_changed()
