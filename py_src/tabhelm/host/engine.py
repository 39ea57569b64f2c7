"""The engine's Python side: sessions come and go, messages find theirs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from tabhelm.errors import TabhelmError
from tabhelm.host.session import Session
from tabhelm.host.silent_engine import SilentEngines
from tabhelm.json_text import loads
from tabhelm.leadership import Election
from tabhelm.observe import EngineReady
from tabhelm.ports import Ports
from tabhelm.ports.database import Opaque
from tabhelm.services import Services


class Deliver(Protocol):
    def __call__(self, session: str, text: str, values: Sequence[Opaque] = ()) -> None: ...


class Bridge(Protocol):
    """What the engine's JavaScript gives (docs/wire.md)."""

    @property
    def info(self) -> str: ...

    def post(self, session: str, text: str, values: Sequence[Opaque] = ()) -> None: ...


class EngineHost:
    """Several tabs in one engine."""

    def __init__(self, bridge: Bridge, ports: Ports) -> None:
        info: dict[str, Any] = json.loads(bridge.info)
        self._bridge = bridge
        self._info = info
        in_page = info.get("host") == "window"
        self.services = Services(
            ports, info["app"], info["protocol"], info["engine"], in_page=in_page, build_id=info.get("buildId", "")
        )
        self.sessions: dict[str, Session] = {}
        self._silent = SilentEngines(self.services, self._elections)
        self.services.events.emit(
            EngineReady(info["engine"], info["from"], float(info["bootMs"]), info.get("fallbackReason"))
        )

    def deliver(self, session: str, text: str, values: Sequence[Opaque] = ()) -> None:
        """One message of a page, or of the engine's JavaScript about a page. Never raises: bad ones are reported.

        ``values`` are those of a call's parameters, which JSON need not hold.
        """
        try:
            self._deliver(session, text, values)
        except TabhelmError as error:
            self.services.events.ignored(error.code)
            self._post(
                session, {"type": "event", "event": {"type": "refused", "code": error.code, "message": str(error)}}
            )
        except Exception as error:
            self.services.events.failed("deliver", error)

    def _deliver(self, name: str, text: str, values: Sequence[Opaque]) -> None:
        try:
            message = loads(text)
        except ValueError:
            message = None
        if values and isinstance(message, dict) and isinstance(message.get("params"), dict):
            message["params"]["values"] = list(values)
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            self.services.events.ignored("malformed")
            return
        if name == "":
            self._engine_says(message["type"])
        elif message["type"] == "hello":
            self._hello(name, message)
        elif message["type"] == "gone":
            session = self.sessions.pop(name, None)
            if session is not None:
                session.end(str(message.get("reason", "gone")))
                self.services.tasks.start(session.ended(), "end session")
        elif name in self.sessions:
            self.sessions[name].receive(message)
        else:
            self.services.events.ignored("no-session")

    def _engine_says(self, kind: str) -> None:
        """The last page goes or has gone, or one is there again. No session is left then."""
        if kind == "cut":
            self.services.database.suspend()
        elif kind == "suspend":
            self.services.suspend()
        elif kind == "resume":
            self.services.resume()
        else:
            self.services.events.ignored("unknown-type")

    def _hello(self, name: str, message: dict[str, Any]) -> None:
        if name in self.sessions:
            self.services.events.ignored("second-hello")
            return
        try:
            session = Session(message, partial(self._post, name), self.services)
        except TabhelmError as error:
            self._post(name, {"type": "refused", "error": {"code": error.code, "message": str(error)}})
            return
        self.sessions[name] = session
        if session.silent_engine is not None:
            self._silent.told(session.silent_engine, session.stall_after)
        info = {key: self._info.get(key) for key in ("from", "bootMs", "fallbackReason")}
        session.joined(info)
        if self._info.get("fallbackReason"):
            # Whoever joins is told, not only who was there when the engine booted.
            self._post(
                name, {"type": "event", "event": {"type": "boot-fallback", "reason": self._info["fallbackReason"]}}
            )

    def _elections(self) -> list[Election]:
        return [election for session in self.sessions.values() for election in session.tab.elections.values()]

    def _post(self, session: str, message: dict[str, Any], values: Sequence[Opaque] = ()) -> None:
        text = json.dumps(message, separators=(",", ":"))
        if values:
            self._bridge.post(session, text, values)
        else:
            self._bridge.post(session, text)


async def start(bridge: Bridge, ports: Ports) -> Deliver:
    """Start the engine; returns the function that takes in messages."""
    return EngineHost(bridge, ports).deliver
