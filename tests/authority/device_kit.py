"""Several devices in one simulation: each with storage, locks and channels of its own, all with one lease service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lease_kit import Crew

from kit import APP, Member
from tabhelm.authority.server_lease import ServerLeaseHold
from tabhelm.leadership import Election
from tabhelm.names import engine_lock
from tabhelm.observe import LeaseTrouble
from tabhelm.ports import PageState, Ports
from tabhelm.presence import Identity
from tabhelm.server import LeaseKey, LeaseRecord, LeaseService, MemoryLeaseStore
from tabhelm.services import Services
from tabhelm.simulated import SimulatedReceiver, World, asgi_handler
from tabhelm.simulated.channel import ChannelHub, SimulatedChannels
from tabhelm.simulated.database import SimulatedDatabases
from tabhelm.simulated.disk import Storage
from tabhelm.simulated.locks import LockManager, SimulatedLocks
from tabhelm.tab import Tab, TabFacts

SERVER = ("server-lease",)
KEY = LeaseKey("public", "app:r")
RECEIVER = "https://receiver.example/"


class Device:
    """One browser profile. Its requests to the service go by a URL of their own, so that it can be cut off alone."""

    def __init__(self, devices: Devices, name: str) -> None:
        world = devices.world
        self.devices = devices
        self.world = world
        self.name = name
        self.locks = LockManager(world)
        self.channels = ChannelHub(world)
        self.storage = Storage(world)
        self.url = f"/{name}/leases"
        world.network.route(self.url, asgi_handler(lambda *call: devices.service(*call)))

    def ports(self, agent: Any) -> Ports:
        return replace(
            self.world.ports(agent),
            locks=SimulatedLocks(self.locks, agent),
            channels=SimulatedChannels(self.channels, agent),
            databases=SimulatedDatabases(self.storage, agent),
        )

    def join(self, name: str | None = None, *, in_page: bool = False, **facts: Any) -> Member:
        """A tab with an engine of its own."""
        name = name or f"{self.name}-tab"
        agent = self.world.agent(name)
        ports = self.ports(agent)
        agent.start(ports.locks.acquire(engine_lock(APP, 1, f"e-{name}")))

        def make() -> tuple[Services, Tab]:
            services = Services(ports, APP, 1, f"e-{name}", in_page=in_page)
            ports.locks.admit(f"c-{name}")
            identity = Identity(f"t-{name}", f"c-{name}", 1)
            return services, Tab(services, identity, TabFacts(**facts), PageState("active"))

        services, tab = agent.call(make)
        return Member(self.world, agent, ports, services, tab)

    def beside(self, member: Member, name: str) -> Member:
        """Another tab of that one's engine."""

        def make() -> Tab:
            member.ports.locks.admit(f"c-{name}")
            identity = Identity(f"t-{name}", f"c-{name}", 1)
            return Tab(member.services, identity, TabFacts(), PageState("active"))

        return Member(self.world, member.agent, member.ports, member.services, member.agent.call(make))

    def lead(self, member: Member, **policy: Any) -> Election:
        return self.devices.crew.lead(member, **{"authorities": SERVER, "lease": self.url, **policy})

    def standing(self, **policy: Any) -> Member:
        """A tab that stands."""
        member = self.join()
        self.lead(member, **policy)
        return member

    async def leading(self, **policy: Any) -> Member:
        """A tab that stands, and leads by now."""
        member = self.standing(**policy)
        await self.devices.crew.led(member)
        return member

    def cut_off(self, off: bool = True) -> None:
        (self.world.network.unreachable.add if off else self.world.network.unreachable.discard)(f"/{self.name}/")

    def fencing(self) -> dict[str, dict[str, Any]]:
        return {record["key"]: record for record in self.storage.dump("tabhelm:app").get("fencing", [])}


class Devices:
    """``wall`` is added to the service's clock, which says when leases end; ``crew`` watches who believes in one."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.crew = Crew(world)
        self.wall = 0.0
        self.options = options
        self.store = MemoryLeaseStore(clock=self._now)
        self.restart()
        self.one, self.two = Device(self, "d1"), Device(self, "d2")

    def restart(self) -> None:
        """A new process of the service on the same store."""
        self.service = LeaseService(self.store, monotonic=self.world.loop.time, **self.options)

    def wipe(self) -> None:
        """The service's database is gone."""
        self.store = MemoryLeaseStore(clock=self._now)
        self.restart()

    @property
    def record(self) -> LeaseRecord:
        return self.store.records[KEY]

    def receiver(self) -> SimulatedReceiver:
        return SimulatedReceiver(self.world, RECEIVER)

    def _now(self) -> float:
        return 1.8e9 + self.world.loop.time() + self.wall


def hold_of(devices: Devices, member: Member) -> ServerLeaseHold:
    found = devices.crew.hold(member)
    assert isinstance(found, ServerLeaseHold)
    return found


def troubles(member: Member) -> list[str | None]:
    return [event.detail for event in member.services.events.recent if isinstance(event, LeaseTrouble)]
