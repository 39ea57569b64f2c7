"""A model of the page client's session (``web/session.mjs``): identity, doubt, unanswered calls, lifecycle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tabhelm.errors import EngineLost, LockWithdrawn, NotJoined, TabhelmError
from tabhelm.names import tab_lock
from tabhelm.ports import Ports
from tabhelm.simulated.loop import fail, settle
from tabhelm.simulated.pageerrors import NoAnswer, Refused, wire_error
from tabhelm.simulated.pagelink import NEVER, Handlers, Link, Settings
from tabhelm.simulated.world import SimulatedAgent

TAB_LOCK_PATIENCE = 0.3
ENGINES = 4
RETRY_LIMIT = 30.0
CALL_LIMIT = 60.0
FINAL = ("wrong-", "malformed", "invalid-")
"""How the codes of refusals begin that another attempt cannot change."""


@dataclass
class _Call:
    message: dict[str, Any]
    once: bool
    answer: asyncio.Future[Any]
    waited: float = 0.0


class Session:
    """Survives links: the tab's identity, its unanswered calls, its lifecycle."""

    def __init__(
        self, agent: SimulatedAgent, ports: Ports, settings: Settings, storage: dict[str, Any], handlers: Handlers
    ) -> None:
        self.agent = agent
        self.ports = ports
        self.settings = settings
        self.handlers = handlers
        self.tab_id = ""
        self.generation = 0
        self.frozen = False
        self.left = False
        self.visible = True
        self.up_once = False
        self.silent_engine = ""
        """The engine that this page was joined to and that fell silent: told to the next one."""
        self.ready: asyncio.Future[None] = agent.loop.create_future()
        self._storage = storage
        self._incarnation = 1
        self._retries = 0
        self._up_for = 0.0
        self._refusal: Refused | None = None
        self._tried = 0
        self._link: Link | None = None
        self._stays = 0
        self._gone = False
        self._holds_tab = False
        self._calls: dict[int, _Call] = {}
        self._last_call = 0

    @property
    def up(self) -> bool:
        return self._link is not None and self._link.phase == "joined"

    @property
    def connection_id(self) -> str:
        return self._link.connection_id if self._link else ""

    @property
    def worker_incarnation(self) -> int:
        """Which of the engines of this build the page is at: 1, or more after engines that did not answer."""
        return self._link.incarnation if self._link else 0

    def now_ms(self) -> float:
        return self.ports.clock.monotonic() * 1000

    def state(self) -> dict[str, Any]:
        lifecycle = "frozen" if self.frozen else "active" if self.visible else "hidden"
        return {"lifecycle": lifecycle, "visible": self.visible, "online": self.agent.online}

    def doubts(self, limit: float) -> bool:
        """Whether the page has to doubt that its engine still counts on it."""
        if self._link is None or self._link.heard == NEVER:
            return True
        trust = self.handlers.patience(limit, self._link.heard / 1000) * 1000
        return self.now_ms() > self._link.heard + trust - max(250.0, limit * 100)

    def able(self) -> bool:
        """Whether this page may begin to lead now."""
        return self.up and not self.frozen and not self.doubts(self.settings.stall_after)

    def post(self, data: dict[str, Any]) -> None:
        if self.up and self._link is not None:
            self._link.post(data)

    def tell_state(self) -> None:
        self.post({"type": "state", **self.state()})

    async def call(self, method: str, params: dict[str, Any], *, once: bool = False) -> Any:
        """Ask the engine; an unanswered call goes again, unchanged, to the next one (unless ``once``)."""
        if self.left:
            raise NotJoined("this tab has left")
        if self._refusal is not None:
            raise self._refusal
        if once and not self.up:
            raise EngineLost("no engine is connected")
        self._last_call += 1
        number = self._last_call
        message = {"type": "call", "id": number, "method": method, "params": params}
        self._calls[number] = waiting = _Call(message, once, self.agent.loop.create_future())
        self.post(message)
        return await waiting.answer

    def start(self) -> None:
        """Begin to join."""
        self._stays += 1
        self.ports.locks.admit(f"stay:{self._stays}")
        self._gone = False
        self.agent.start(self._connect(self._stays))

    def leave(self, reason: str) -> None:
        if not self.left:
            self.left = True
            self.depart(reason)
            self._reject(NotJoined("this tab has left"), everything=True)
            fail(self.ready, NotJoined("this tab has left"))

    # ---- called by the link -----------------------------------------------------------------------------------------

    def receive(self, data: dict[str, Any]) -> None:
        if data.get("type") != "answer":
            self.handlers.receive(data)
            return
        waiting = self._calls.pop(data["id"], None)
        if waiting is None:
            return
        error = data.get("error")
        if error:
            fail(waiting.answer, wire_error(error))
        else:
            settle(waiting.answer, data.get("result"))

    def heard(self) -> None:
        if self.up:
            self.handlers.on_heard()

    def tick(self, step: float) -> None:
        if self.doubts(self.settings.stall_after):
            self.handlers.on_doubt()
        self._up_for += step
        if self._up_for >= self.settings.stall_after:
            self._retries = 0
        for number, waiting in list(self._calls.items()):
            waiting.waited += step
            if waiting.waited > CALL_LIMIT:
                del self._calls[number]
                fail(waiting.answer, NoAnswer(f"no answer to {waiting.message['method']!r} for {CALL_LIMIT} s"))

    def joined(self, link: Link) -> None:
        self._tried = 0
        self._up_for = 0.0
        self.up_once = True
        self.silent_engine = ""
        link.post({"type": "state", **self.state()})
        self.handlers.on_up()
        for waiting in self._calls.values():
            waiting.waited = 0.0
            link.post(waiting.message)
        settle(self.ready, None)

    def lost(self, link: Link, reason: str, forward: bool, refused: str) -> None:
        was_up, self.up_once = self.up_once, False
        self._drop(reason)
        if forward:
            self._incarnation = self._incarnation % ENGINES + 1
        if refused:
            if refused.startswith(FINAL):
                self._refusal = Refused(f"the engine {reason}")
            self._give_up(reason)
        elif was_up:
            self._again(0.0)
        else:
            self._tried += 1
            if self._tried < ENGINES:
                self._attempt()
            else:
                self._tried = 0
                self._incarnation = 1
                self._give_up(f"no engine answered: the last one {reason}")

    # ---- connecting -------------------------------------------------------------------------------------------------

    async def _connect(self, stay: int) -> None:
        if await self._identify(stay):
            self._attempt()

    def _attempt(self) -> None:
        self._link = Link(self, self._incarnation, self.ports.entropy.token_bytes(8).hex())
        self.agent.start(self._link.open())

    def _give_up(self, reason: str) -> None:
        error = self._refusal or EngineLost(reason)
        fail(self.ready, error)
        self._reject(error, everything=True)
        if self._refusal is None:
            self._again(1.0)

    def _again(self, least: float) -> None:
        """At once, or after ``least`` seconds, if the last engine had proved itself; else ever later."""
        pause = max(least, min(RETRY_LIMIT, 0.5 * 2**self._retries) if self._retries else 0.0)
        self._retries += 1
        stay = self._stays

        def retry() -> None:
            if not self._gone and self._stays == stay:
                self.agent.start(self._connect(stay))

        if pause:
            self.ports.clock.call_later(pause, retry)
        else:
            retry()

    def _drop(self, reason: str) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self.handlers.on_down(reason)
        self._reject(EngineLost(f"the engine {reason}"), everything=False)

    def _reject(self, error: TabhelmError, *, everything: bool) -> None:
        for number, waiting in list(self._calls.items()):
            if everything or waiting.once:
                del self._calls[number]
                fail(waiting.answer, error)

    async def _identify(self, stay: int) -> bool:
        """Who is this tab? A duplicated tab has a copy of the stored id, but cannot get the lock that goes with it."""
        stored = self._storage.get("tab")
        owner = f"stay:{stay}"
        if not self._holds_tab:
            candidate = self.tab_id or (stored["id"] if stored else "")
            mine = bool(candidate) and await self._hold_tab(candidate, owner, TAB_LOCK_PATIENCE)
            if self._stays != stay or self._gone:
                return False
            if mine:
                self.tab_id = candidate
            else:
                self.tab_id = self.ports.entropy.token_bytes(8).hex()
                self.generation = 0
                if not await self._hold_tab(self.tab_id, owner, None) or self._stays != stay or self._gone:
                    return False
            self._holds_tab = True
        known = stored["generation"] if stored and stored["id"] == self.tab_id else 0
        self.generation = 1 + max(self.generation, known)
        self._storage["tab"] = {"id": self.tab_id, "generation": self.generation}
        return True

    async def _hold_tab(self, tab_id: str, owner: str, patience: float | None) -> bool:
        name = tab_lock(self.settings.app, self.settings.protocol, tab_id)
        request = asyncio.ensure_future(self.ports.locks.acquire(name, owner=owner))

        async def give_up(patience: float) -> None:
            await self.ports.clock.sleep(patience)
            await self.ports.locks.query()  # what nobody holds has been granted by then
            request.cancel()

        giving_up = None if patience is None else asyncio.ensure_future(give_up(patience))
        try:
            await request
        except (LockWithdrawn, asyncio.CancelledError):
            return False
        finally:
            if giving_up is not None:
                giving_up.cancel()
        return True

    # ---- lifecycle --------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        if not self.frozen:
            self.frozen = True
            self.handlers.on_down("freeze")
            if self._link is not None:
                self._link.post({"type": "freeze"})

    def resume(self) -> None:
        if self.frozen:
            self.frozen = False
            if self._link is not None:
                self._link.post({"type": "resume", "at": self._link.resumed(), **self.state()})

    def depart(self, reason: str) -> None:
        """Leave without a trace: a cached page that holds a lock, or waits for one, starves the others."""
        self.handlers.on_down(reason)
        if self._link is not None:
            self._link.post({"type": "bye", "reason": reason})
        self._gone = True
        self.up_once = False
        self.ports.locks.drop(f"stay:{self._stays}")
        self._holds_tab = False
        self._drop(reason)

    def come_back(self) -> None:
        """Restored from the back/forward cache: join again."""
        if self._gone and not self.left:
            self.frozen = False
            self._refusal = None
            self.start()
