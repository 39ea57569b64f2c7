"""A model of the engine's JavaScript (``web/engine.mjs``), in a SharedWorker or a page; hosts the real Python core.

Welcomes while Python boots, keeps lifelines, pings, and lets go of a vanished page's locks before it tells Python. What
it does must follow ``docs/wire.md`` and ``engine.mjs``; what Python does with it is the core's own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tabhelm.errors import LockWithdrawn
from tabhelm.names import engine_lock
from tabhelm.ports import Ports, Timer
from tabhelm.ports.database import Opaque
from tabhelm.simulated.messageport import MessagePort
from tabhelm.simulated.pulse import Patience, Pulse
from tabhelm.simulated.world import SimulatedAgent, World

Deliver = Callable[..., None]
"""``deliver(session, text)``, and with values beside it ``deliver(session, text, values)``."""
SETTLE = 0.003
"""Seconds that a worker's Python has to begin what its last page asked for before its goodbye."""


class Bridge(Protocol):
    """What the core gets of the engine (``docs/wire.md``); locks come as a port."""

    @property
    def info(self) -> str: ...

    def post(self, session: str, text: str, values: Sequence[Opaque] = ()) -> None: ...


EngineFactory = Callable[[Any, Ports], Awaitable[Deliver]]
"""``tabhelm.host.engine.start``: takes a ``Bridge``, returns ``deliver``."""


@dataclass(eq=False)
class _Session:
    id: str
    port: MessagePort
    pulse: Pulse
    known: bool = False
    frozen: bool = False
    early: list[tuple[str, Sequence[Opaque]]] = field(default_factory=list)
    gone: bool = False


SUSPEND = json.dumps({"type": "suspend"})
CUT = json.dumps({"type": "cut"})
RESUME = json.dumps({"type": "resume"})


class SimulatedEngine:
    """One engine; the browser around it decides on its end.

    ``page``: the ports and the patience of the page that it runs in; it shares that page's agent.
    """

    def __init__(
        self,
        world: World,
        agent: SimulatedAgent,
        app: str,
        protocol: int,
        build: str,
        boot: float,
        page: tuple[Ports, Patience] | None = None,
    ) -> None:
        self.world = world
        self.agent = agent
        self._patience: Patience | None
        self.ports, self._patience = page or (world.ports(agent), None)
        self.in_page = page is not None
        self.suspended = False
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
        self._away = False  # what Python believes of ``suspended``
        self._settling: Timer | None = None
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
        if self.suspended:
            self._sleep()
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
                "host": "window" if self.in_page else "shared",
            }
        )

    def post(self, session: str, text: str, values: Sequence[Opaque] = ()) -> None:
        known = self._sessions.get(session)
        if known is not None:
            message = json.loads(text)
            if values:
                (message.get("result") or message)["values"] = list(values)
            known.port.post(message)

    def report(self, text: str) -> None:
        self.world.loop.errors.append(f"{self.world.loop.time():.6f} {self.agent.name}: reported: {text}")

    # ---- our own life -----------------------------------------------------------------------------------------------

    def suspend(self, reason: str) -> None:
        """The page that it runs in, or its last page, goes away: all is let go before this returns, and before Python
        hears of it."""
        if self.suspended or self.failure is not None:
            return
        self.suspended = True
        self._locked = False
        gone = list(self._sessions.values())
        for session in gone:
            self._forget(session)
        self.ports.locks.drop("")
        for session in gone:
            session.port.close()
        if reason == "pagehide" and self._deliver is not None:
            self._away = True
            self._hand("", CUT)  # an open transaction that stands still keeps everybody else out of the database
        for session in gone:
            self._gone(session, reason)
        if self.in_page:
            self._sleep()
        else:
            self._settling = self.ports.clock.call_later(SETTLE, self._sleep)

    def _sleep(self) -> None:
        self.ports.locks.drop("")  # Python may have asked again meanwhile
        self._away = self._deliver is not None
        self._hand("", SUSPEND)

    def resume(self) -> None:
        """A page says hello, for the first time since."""
        if self.suspended and self.failure is None:
            self.suspended = False
            if self._settling is not None:
                self._settling.cancel()
            self.agent.start(self._own_lock(steal=True))

    async def _own_lock(self, *, steal: bool = False) -> None:
        try:
            lock = await self.ports.locks.acquire(self.lock_name, steal=steal)
        except LockWithdrawn:
            return
        assert lock is not None
        if self.suspended:
            lock.release()
            return
        if self._away:
            self._hand("", RESUME)
        self._away = False
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
        sessions = list(self._sessions.values())
        for session in sessions:
            self._forget(session)
        self.ports.locks.drop("")
        for port in [port for port, _ in self._waiting] + [session.port for session in sessions]:
            port.post({"type": "failed", "error": self.failure})
        for session in sessions:
            self._gone(session, code)
        if self.in_page:
            self._hand("", SUSPEND)
        else:
            self.ports.clock.call_later(0.1, self.agent.die)
        self._deliver = None

    # ---- what pages say ---------------------------------------------------------------------------------------------

    def _came(self, port: MessagePort, data: Any) -> None:
        if not isinstance(data, dict) or data.get("type") in (None, "gone", "stalled", "answering"):
            self.ignored += 1
        elif self.failure is not None:
            port.post({"type": "failed", "error": self.failure})
        elif not self._locked:
            self._waiting.append((port, data))
            if data["type"] == "hello":
                self.resume()
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
            if not self._sessions:
                self.suspend("refused")
            return
        session = _Session(
            hello["session"],
            port,
            Pulse(
                self.ports.clock,
                hello["stallAfterMs"] / 1000,
                hello["at"],
                ping=lambda n, heard: port.post({"type": "ping", "n": n, "heard": heard}),
                stalled=lambda: self._stalled(session),
                answering=lambda: self._answering(session),
                patience=self._patience,
            ),
        )
        self._sessions[session.id] = session
        self.ports.locks.admit(session.id)
        self.ports.locks.admit(f"lifeline:{session.id}")
        self.agent.start(self._lifeline(session, hello["lifeline"]))
        welcome = {"engine": self.engine_id, "engineLock": self.lock_name, "buildId": self.build}
        port.post({"type": "welcome", **welcome, "heard": session.pulse.heard})
        session.pulse.start()
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
            if session.pulse.pong(data["n"]) and not session.frozen:
                session.pulse.hear(data["at"])
        elif kind == "bye":
            self._end(session, data.get("reason") or "bye")
        elif kind == "freeze":
            self.ports.locks.drop(session.id)  # first: the engine may be suspended with the page at any moment
            session.frozen = True
            session.pulse.stop()
            self._tell(session, data)
        elif kind == "resume":
            session.frozen = False
            session.pulse.resume(data["at"])
            self.ports.locks.admit(session.id)
            self._tell(session, data)
            session.pulse.start()
            session.pulse.ping()
        else:
            self._tell(session, data)

    # ---- is the page still there? -----------------------------------------------------------------------------------

    def _stalled(self, session: _Session) -> None:
        self.world.note(self.agent.name, f"stalled {session.id}")
        self.ports.locks.drop(session.id)
        self._tell(session, {"type": "stalled"})

    def _answering(self, session: _Session) -> None:
        self.ports.locks.admit(session.id)
        self._tell(session, {"type": "answering"})

    def _end(self, session: _Session, reason: str) -> None:
        if session.gone:
            return
        if len(self._sessions) == 1:
            self.suspend(reason)
            return
        self._forget(session)
        session.port.close()
        self._gone(session, reason)

    def _gone(self, session: _Session, reason: str) -> None:
        if session.known:
            self._hand(session.id, json.dumps({"type": "gone", "reason": reason}))

    def _hand(self, session: str, text: str, values: Sequence[Opaque] = ()) -> None:
        if self._deliver is not None:
            self._deliver(session, text, *([values] if values else []))

    def _forget(self, session: _Session) -> None:
        session.gone = True
        self.ports.locks.drop(session.id)
        self.ports.locks.drop(f"lifeline:{session.id}")
        self._sessions.pop(session.id, None)
        session.pulse.stop()
        session.early = []

    # ---- to Python --------------------------------------------------------------------------------------------------

    def _tell(self, session: _Session, data: dict[str, Any]) -> None:
        values: Sequence[Opaque] = ()
        if isinstance(data.get("params"), dict) and isinstance(data["params"].get("values"), list):
            params = dict(data["params"])
            values = params.pop("values")
            data = data | {"params": params}
        text = json.dumps(data)
        if session.known and self._deliver is not None:
            self._hand(session.id, text, values)
        else:
            session.early.append((text, values))

    def _flush(self, session: _Session) -> None:
        if self._deliver is None or session.gone:
            return
        session.known = True
        early, session.early = session.early, []
        for text, values in early:
            self._hand(session.id, text, values)
