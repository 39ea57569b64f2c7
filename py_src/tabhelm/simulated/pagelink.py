"""A model of the page client's link (``web/link.mjs``): one connection of a page to one engine.

Times on the wire are milliseconds of the page's own clock, as in the real client; everything else is seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tabhelm.errors import LockWithdrawn
from tabhelm.names import lifeline_lock
from tabhelm.simulated.messageport import MessagePort

if TYPE_CHECKING:
    from tabhelm.simulated.pagesession import Session

BOOT_SILENCE = 30.0
BOOT_LIMIT = 90.0
NEVER = float("-inf")


@dataclass
class Settings:
    """What ``join`` takes, in seconds."""

    app: str = "app"
    protocol: int = 1
    version: str = "1"
    build: str = "build"
    capabilities: list[str] = field(default_factory=list)
    user_session: str | None = None
    stall_after: float = 10.0
    engine_patience: float = 2.0
    host: str = "shared"
    """``shared``, or ``window``: the engine runs in the page."""


class Handlers(Protocol):
    """What the tab does when its session changes. All are called synchronously."""

    def on_up(self) -> None: ...

    def on_down(self, reason: str) -> None: ...

    def on_doubt(self) -> None: ...

    def on_heard(self) -> None: ...

    def receive(self, data: dict[str, Any]) -> None: ...

    def connect(self, name: str) -> MessagePort: ...

    def patience(self, limit: float, since: float) -> float: ...


class Link:
    """One connection to one engine."""

    def __init__(self, session: Session, incarnation: int, connection_id: str) -> None:
        self.session = session
        self.incarnation = incarnation
        self.connection_id = connection_id
        self.heard = NEVER
        self.phase = "opening"
        self._floor = 0.0
        self._quiet = 0.0
        self._booting = 0.0
        self._engine = ""
        self._port: MessagePort | None = None
        self._owner = f"link:{connection_id}"
        session.ports.locks.admit(self._owner)

    @property
    def worker_name(self) -> str:
        settings = self.session.settings
        suffix = f"#{self.incarnation}" if self.incarnation > 1 else ""
        return f"tabhelm:{settings.app}:v{settings.protocol}:{settings.build}{suffix}"

    async def open(self) -> None:
        """Hold the lifeline, then say hello: an engine must never know of a page whose death it could not see."""
        session, settings = self.session, self.session.settings
        lifeline = lifeline_lock(settings.app, settings.protocol, session.tab_id, self.connection_id)
        try:
            await session.ports.locks.acquire(lifeline, owner=self._owner)
        except LockWithdrawn:
            return
        if self.phase == "closed":
            return
        self._port = session.handlers.connect(self.worker_name)
        self.phase = "greeting"
        self._port.listen(self._receive)
        self._floor = session.now_ms()
        self.post(
            {
                "type": "hello",
                "wire": 1,
                "session": self.connection_id,
                "tab": session.tab_id,
                "generation": session.generation,
                "lifeline": lifeline,
                "app": settings.app,
                "protocol": settings.protocol,
                "version": settings.version,
                "capabilities": settings.capabilities,
                "userSession": settings.user_session,
                **session.state(),
                "stallAfterMs": settings.stall_after * 1000,
                "at": self._floor,
                "wheels": [],
                "testHooks": True,
                **({"silentEngine": session.silent_engine} if session.silent_engine else {}),
            }
        )
        self._arm()

    def post(self, data: dict[str, Any]) -> None:
        if self.phase != "closed" and self._port is not None:
            self._port.post(data)

    def resumed(self) -> float:
        """After a freeze only an echo of this moment counts."""
        self.heard = NEVER
        self._floor = self.session.now_ms()
        return self._floor

    def close(self) -> None:
        self.phase = "closed"
        self.session.ports.locks.drop(self._owner)
        if self._port is not None:
            self._port.close()

    def _arm(self) -> None:
        settings = self.session.settings
        step = min(settings.engine_patience, settings.stall_after) / 4

        def tick() -> None:
            if self.phase != "closed":
                self._arm()
                self._tick(step)

        self.session.ports.clock.call_later(step, tick)

    def _tick(self, step: float) -> None:
        if self.session.frozen:
            return
        self._quiet += step
        session, settings = self.session, self.session.settings
        if self.phase == "greeting":
            if self._quiet >= settings.engine_patience:
                self._fail("gave no welcome", forward=True)
        elif self.phase == "booting":
            self._booting += step
            if self._quiet > max(BOOT_SILENCE, settings.stall_after) or self._booting > BOOT_LIMIT:
                self._fail("did not finish booting Python", forward=True)
        elif self._quiet > settings.stall_after:
            session.silent_engine = self._engine
            self._fail("said nothing", forward=True)
        else:
            self.session.tick(step)

    def _receive(self, data: dict[str, Any]) -> None:
        if self.phase == "closed":
            return
        self._quiet = 0.0
        kind = data.get("type")
        if kind == "welcome" and self.phase == "greeting":
            self.phase = "booting"
            self._engine = data["engine"]
            self._hear(data["heard"])
            self.session.agent.start(self._watch(data["engineLock"]))
        elif kind == "ping":
            self.post({"type": "pong", "n": data["n"], "at": self.session.now_ms()})
            self._hear(data["heard"])
        elif kind == "joined" and self.phase == "booting":
            self.phase = "joined"
            self.session.joined(self)
        elif kind == "refused":
            self._fail(f"refused this page: {data['error']['message']}", refused=data["error"]["code"])
        elif kind == "failed":
            self._fail(f"failed: {data['error']['message']}", forward=True)
        elif kind not in ("welcome", "joined"):
            self.session.receive(data)

    def _hear(self, heard: float) -> None:
        if heard >= self._floor:
            self.heard = max(self.heard, heard)
            self.session.heard()

    async def _watch(self, name: str) -> None:
        """The engine holds its lock while it lives: being granted it, shared, means that it died."""
        try:
            await self.session.ports.locks.acquire(name, owner=self._owner, mode="shared")
        except LockWithdrawn:
            return
        self._fail("died")

    def _fail(self, reason: str, *, forward: bool = False, refused: str = "") -> None:
        if self.phase == "closed":
            return
        if forward:
            self.post({"type": "bye", "reason": "engine-abandoned"})
        self.close()
        self.session.lost(self, reason, forward, refused)
