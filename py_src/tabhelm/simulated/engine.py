"""A model of the engine's JavaScript (``web/engine.mjs``): a SharedWorker that hosts the real Python core.

Welcomes while Python boots, keeps lifelines, pings, and lets go of a vanished page's locks before it tells Python. What
it does must follow ``docs/wire.md`` and ``engine.mjs``; what Python does with it is the core's own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tabhelm.errors import LockWithdrawn
from tabhelm.names import engine_lock
from tabhelm.ports import Ports, Timer
from tabhelm.simulated.messageport import MessagePort
from tabhelm.simulated.world import SimulatedAgent, World

Deliver = Callable[[str, str], None]
MOST_PINGS_AHEAD = 8


class Bridge(Protocol):
    """What the core gets of the engine (``docs/wire.md``); locks come as a port."""

    @property
    def info(self) -> str: ...

    def post(self, session: str, text: str) -> None: ...


EngineFactory = Callable[[Any, Ports], Awaitable[Deliver]]
"""``tabhelm.host.engine.start``: takes a ``Bridge``, returns ``deliver(session, text)``."""


@dataclass(eq=False)
class _Session:
    id: str
    port: MessagePort
    stall_after: float
    heard: float
    """The page's own clock, echoed to it (milliseconds)."""
    heard_at: float
    """Ours (seconds)."""
    known: bool = False
    frozen: bool = False
    stalled: bool = False
    n: int = 0
    answered: int = 0
    early: list[str] = field(default_factory=list)
    ping_timer: Timer | None = None
    stall_timer: Timer | None = None
    gone: bool = False


class SimulatedEngine:
    """One SharedWorker. ``clients`` are the pages that keep it alive; the browser around it decides on its end."""

    def __init__(self, world: World, agent: SimulatedAgent, app: str, protocol: int, build: str, boot: float) -> None:
        self.world = world
        self.agent = agent
        self.ports = world.ports(agent)
        self.app = app
        self.protocol = protocol
        self.build = build
        self.engine_id = self.ports.entropy.token_bytes(16).hex()
        self.lock_name = engine_lock(app, protocol, self.engine_id)
        self.ignored = 0
        self.failure: dict[str, str] | None = None
        self._sessions: dict[str, _Session] = {}
        self._waiting: list[tuple[MessagePort, Any]] = []
        self._locked = False
        self._deliver: Deliver | None = None
        self._boot = boot

    async def run(self, factory: EngineFactory) -> None:
        """Take the engine's own lock, boot Python, start the core."""
        self.agent.start(self._own_lock())
        await self.ports.clock.sleep(self._boot)
        if self.failure is not None:
            return
        try:
            deliver = await factory(self, self.ports)
        except Exception as error:
            self.fail("boot", f"{type(error).__name__}: {error}")
            self.world.loop.errors.append(f"engine {self.agent.name} did not start: {error!r}")
            return
        self._deliver = deliver
        for session in list(self._sessions.values()):
            self._flush(session)

    def connect(self, port: MessagePort) -> None:
        """A page has connected."""
        port.listen(lambda data: self._came(port, data))
        if self.failure is not None:
            port.post({"type": "failed", "error": self.failure})

    # ---- the bridge to Python ---------------------------------------------------------------------------------------

    @property
    def info(self) -> str:
        return json.dumps(
            {
                "engine": self.engine_id,
                "engineLock": self.lock_name,
                "app": self.app,
                "protocol": self.protocol,
                "buildId": self.build,
                "version": "0",
                "from": "snapshot",
                "fallbackReason": None,
                "bootMs": round(self._boot * 1000),
            }
        )

    def post(self, session: str, text: str) -> None:
        known = self._sessions.get(session)
        if known is not None:
            known.port.post(json.loads(text))

    def report(self, text: str) -> None:
        self.world.loop.errors.append(f"{self.world.loop.time():.6f} {self.agent.name}: reported: {text}")

    # ---- our own life -----------------------------------------------------------------------------------------------

    async def _own_lock(self) -> None:
        lock = await self.ports.locks.acquire(self.lock_name)
        assert lock is not None
        lock.on_end(lambda end: self.fail("deposed", "another engine took over") if end == "stolen" else None)
        self._locked = True
        waiting, self._waiting = self._waiting, []
        for port, data in waiting:
            self._came(port, data)

    def fail(self, code: str, message: str) -> None:
        """The end of this engine: told to every page, its locks let go; the pages join the next incarnation."""
        if self.failure is not None:
            return
        self.failure = {"code": code, "message": message}
        self.world.note(self.agent.name, f"engine failed: {code}")
        ports = [port for port, _ in self._waiting] + [session.port for session in self._sessions.values()]
        for session in list(self._sessions.values()):
            self._forget(session)
            if session.known and self._deliver is not None:
                self._deliver(session.id, json.dumps({"type": "gone", "reason": code}))
        for port in ports:
            port.post({"type": "failed", "error": self.failure})
        self.ports.locks.drop("")
        self._deliver = None
        self.ports.clock.call_later(0.1, self.agent.die)

    # ---- what pages say ---------------------------------------------------------------------------------------------

    def _came(self, port: MessagePort, data: Any) -> None:
        if not isinstance(data, dict) or data.get("type") in (None, "gone", "stalled", "answering"):
            self.ignored += 1
        elif self.failure is not None:
            port.post({"type": "failed", "error": self.failure})
        elif not self._locked:
            self._waiting.append((port, data))
        elif data["type"] == "hello":
            self._hello(port, data)
        else:
            session = next((each for each in self._sessions.values() if each.port is port), None)
            if session is None:
                self.ignored += 1
            else:
                self._says(session, data)

    def _hello(self, port: MessagePort, hello: dict[str, Any]) -> None:
        if hello["session"] in self._sessions:
            self.ignored += 1
            return
        if (hello["app"], hello["protocol"]) != (self.app, self.protocol):
            port.post({"type": "refused", "error": {"code": "wrong-engine", "message": "another app or protocol"}})
            return
        stall_after = hello["stallAfterMs"] / 1000
        session = _Session(hello["session"], port, stall_after, hello["at"], self.ports.clock.monotonic())
        self._sessions[session.id] = session
        self.ports.locks.admit(session.id)
        self.ports.locks.admit(f"lifeline:{session.id}")
        self.agent.start(self._lifeline(session, hello["lifeline"]))
        welcome = {"engine": self.engine_id, "engineLock": self.lock_name, "buildId": self.build}
        port.post({"type": "welcome", **welcome, "heard": session.heard})
        self._watch(session)
        self._tell(session, hello)
        self._flush(session)

    async def _lifeline(self, session: _Session, name: str) -> None:
        try:
            await self.ports.locks.acquire(name, owner=f"lifeline:{session.id}")
        except LockWithdrawn:
            return
        self._end(session, "lifeline")

    def _says(self, session: _Session, data: dict[str, Any]) -> None:
        kind = data["type"]
        if kind == "pong":
            if session.answered < data["n"] <= session.n:
                session.answered = data["n"]
                if not session.frozen:
                    self._heard(session, data["at"])
        elif kind == "bye":
            self._end(session, data.get("reason") or "bye")
        elif kind == "freeze":
            self.ports.locks.drop(session.id)  # first: the engine may be suspended with the page at any moment
            session.frozen = True
            self._unwatch(session)
            self._tell(session, data)
        elif kind == "resume":
            session.frozen = False
            session.answered = session.n
            self._heard(session, data["at"])
            self.ports.locks.admit(session.id)
            self._tell(session, data)
            self._unwatch(session)
            self._watch(session)
        else:
            self._tell(session, data)

    # ---- is the page still there? -----------------------------------------------------------------------------------

    def _heard(self, session: _Session, at: float) -> None:
        session.heard = at
        session.heard_at = self.ports.clock.monotonic()
        if session.stalled:
            session.stalled = False
            self.ports.locks.admit(session.id)
            self._tell(session, {"type": "answering"})
            self._await_stall(session, session.stall_after)

    def _watch(self, session: _Session) -> None:
        def ping() -> None:
            session.ping_timer = self.ports.clock.call_later(session.stall_after / 4, ping)
            self._ping(session)

        session.ping_timer = self.ports.clock.call_later(session.stall_after / 4, ping)
        self._await_stall(session, session.stall_after)

    def _unwatch(self, session: _Session) -> None:
        for timer in (session.ping_timer, session.stall_timer):
            if timer is not None:
                timer.cancel()

    def _ping(self, session: _Session) -> None:
        if session.n - session.answered < MOST_PINGS_AHEAD:
            session.n += 1
            session.port.post({"type": "ping", "n": session.n, "heard": session.heard})

    def _await_stall(self, session: _Session, delay: float) -> None:
        if session.stall_timer is not None:
            session.stall_timer.cancel()
        due = self.ports.clock.monotonic() + delay
        session.stall_timer = self.ports.clock.call_later(delay, lambda: self._stall_due(session, due))

    def _stall_due(self, session: _Session, due: float) -> None:
        now = self.ports.clock.monotonic()
        pause = session.stall_after / 4
        if now - due > pause:  # we ourselves stood still: judge the page after one more ping
            self._ping(session)
            self._await_stall(session, pause)
            return
        left = session.heard_at + session.stall_after - now
        if left > 1e-9:
            self._await_stall(session, left)
            return
        session.stalled = True
        self.world.note(self.agent.name, f"stalled {session.id}")
        self.ports.locks.drop(session.id)
        self._tell(session, {"type": "stalled"})

    def _end(self, session: _Session, reason: str) -> None:
        if session.gone:
            return
        self._forget(session)
        session.port.close()
        if session.known and self._deliver is not None:
            self._deliver(session.id, json.dumps({"type": "gone", "reason": reason}))

    def _forget(self, session: _Session) -> None:
        session.gone = True
        self.ports.locks.drop(session.id)
        self.ports.locks.drop(f"lifeline:{session.id}")
        self._sessions.pop(session.id, None)
        self._unwatch(session)
        session.early = []

    # ---- to Python --------------------------------------------------------------------------------------------------

    def _tell(self, session: _Session, data: dict[str, Any]) -> None:
        text = json.dumps(data)
        if session.known and self._deliver is not None:
            self._deliver(session.id, text)
        else:
            session.early.append(text)

    def _flush(self, session: _Session) -> None:
        if self._deliver is None or session.gone:
            return
        session.known = True
        early, session.early = session.early, []
        for text in early:
            self._deliver(session.id, text)
