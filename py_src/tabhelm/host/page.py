"""The host of a page that runs Python itself: its engine lives and freezes with it.

Nobody outside watches such a page, so it lets go by itself, inside the browser's own event handlers: a frozen page that
holds a lock starves everybody, and one that waits for a lock is granted it all the same. ``freeze`` drops what the tab
leads and asks for; ``pagehide`` drops everything and closes what is open, for a page in the back/forward cache may keep
nothing; ``pageshow`` joins again under a new connection, and the same elections and queues go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from tabhelm.errors import InvalidName, InvalidPolicy, LockWithdrawn, NoAuthority
from tabhelm.host.doubting_locks import DoubtingLocks
from tabhelm.host.stillness import BEATS, Stillness
from tabhelm.json_text import is_number
from tabhelm.names import check_part, check_protocol, check_scope, engine_lock
from tabhelm.ports import LifecycleEvent, PageLifecycle, Ports
from tabhelm.presence import Identity, TabMemory, claim_identity
from tabhelm.presence.identity import draw_id
from tabhelm.services import Services
from tabhelm.tab import Tab, TabFacts

LEAST_STALL = 0.5
HIDDEN_PAUSE = 75.0
"""Seconds in which a hidden page's timers need not fire: browsers throttle them to one a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """What a page says when it joins; see ``tabhelm.join``."""

    app: str
    protocol: int = 1
    version: str = ""
    capabilities: Iterable[str] = ()
    user_session: str | None = None
    stall_after: float = 10.0

    def __post_init__(self) -> None:
        check_part("app", self.app)
        check_protocol(self.protocol)
        check_scope(self.user_session)
        object.__setattr__(self, "capabilities", check_words("capabilities", self.capabilities))
        self.facts()
        stall = self.stall_after
        if not is_number(stall) or stall < LEAST_STALL:
            raise InvalidPolicy(
                f"stall_after {stall!r:.60} is not valid: at least {LEAST_STALL:g} seconds are expected"
            )

    def facts(self) -> TabFacts:
        """What the tab says of itself at first."""
        return TabFacts(self.version, frozenset(self.capabilities), self.user_session)


def check_words(what: str, value: Iterable[str]) -> frozenset[str]:
    """The set of these texts.

    Raises:
        InvalidName: it is one text, or holds something else.
    """
    words = tuple(value) if isinstance(value, Iterable) else (value,)
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(word, str) for word in words):
        raise InvalidName(f"{what} {value!r:.80} is not valid: a set of names is expected")
    return frozenset(words)


class PageMemory(TabMemory, Protocol):
    """A tab's memory (sessionStorage), which all joins of one page share."""

    def release(self, tab_id: str) -> None:
        """This page uses the id no more: its next join may have it."""


class PageHost:
    """One join of one page, from ``enter`` until ``leave``."""

    def __init__(self, ports: Ports, lifecycle: PageLifecycle, memory: PageMemory, options: JoinOptions) -> None:
        self._locks = ports.locks
        self._clock = ports.clock
        self._lifecycle = lifecycle
        self._memory = memory
        self._options = options
        beat = options.stall_after / BEATS
        self._stillness = Stillness(ports.clock, beat, self._patience, self._stood_still, self._going)
        self._ports = replace(ports, locks=DoubtingLocks(ports.locks, self._stillness.stood_still))
        self._engine_id = ports.entropy.token_bytes(16).hex()
        self._tab: Tab | None = None
        self._lockless: str | None = None
        """Why this context has no Web Locks, if it has none: then nobody is told of its death, and leases decide."""
        self._visits = 0
        self._shown = asyncio.Event()
        self._shown.set()
        self._returning = False
        self._leaving: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()

    @property
    def tab(self) -> Tab:
        """The tab that has joined."""
        assert self._tab is not None, "not joined yet"
        return self._tab

    async def enter(self) -> Tab:
        """Join: hold the engine's lock and the tab's, then be there for others.

        A context without Web Locks joins all the same, if it has storage for leases; others learn of its end only when
        they hear it no more.

        Raises:
            NoAuthority: it can have neither; says why.
        """
        options = self._options
        self._lifecycle.subscribe(self._happened)
        try:
            identity = await self._arrive(self._memory)
            state = self._lifecycle.state()
            services = Services(self._ports, options.app, options.protocol, self._engine_id, in_page=True)
            if self._lockless is not None and (denied := await services.storage_denied()) is not None:
                await services.close()
                raise NoAuthority(
                    f"nothing can decide here who leads; web-locks: {self._lockless}; indexeddb-lease: {denied}. Serve "
                    "the page over https, or from localhost, and allow site data"
                )
            if state.lifecycle != "frozen":
                self._locks.admit(identity.connection_id)
            self._tab = Tab(services, identity, options.facts(), state)
        except BaseException:
            self._let_go()
            raise
        self._stillness.start()
        return self._tab

    async def leave(self, reason: str) -> None:
        """Stop all elections, say goodbye, keep nothing. Cancelling this does not stop it; called again, it waits."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._leave(reason), name="leave")
        await self._gone.wait()

    async def _leave(self, reason: str) -> None:
        try:
            if self._shown.is_set() and not self._returning:
                await self.tab.leave(reason)
            else:
                self.tab.vanish(reason)
                await self.tab.gone()
            await self.tab.services.close()
        finally:
            self._let_go()
            self._gone.set()

    def _let_go(self) -> None:
        self._stillness.stop()
        self._lifecycle.close()
        self._drop_all()

    def _drop_all(self) -> None:
        if self._tab is not None:
            self._locks.drop(self._tab.identity.connection_id)
        self._locks.drop("")
        if self._tab is not None:
            self._memory.release(self._tab.identity.tab_id)

    async def _arrive(self, memory: TabMemory) -> Identity:
        """Hold the locks that say that we are here, whatever comes and goes meanwhile; a new connection."""
        options, locks = self._options, self._locks
        while True:
            visit = self._visits
            try:
                # By force: whoever watches for our death and hangs was granted it when we went into the cache, shared.
                await locks.acquire(engine_lock(options.app, options.protocol, self._engine_id), steal=True)
                identity, _ = await claim_identity(
                    options.app, options.protocol, memory, locks, self._clock, self._ports.entropy
                )
                if visit == self._visits:
                    return identity
            except LockWithdrawn:
                if visit == self._visits:
                    raise
            except NoAuthority as missing:
                self._lockless = str(missing)
                if visit == self._visits:
                    return self._unproved_identity(memory)
            locks.drop("")  # the page went, and whatever was granted at the last moment may not stay
            await self._shown.wait()

    def _unproved_identity(self, memory: TabMemory) -> Identity:
        """Without locks nobody can tell a reloaded tab from its duplicate, which has the same memory: only a page that
        comes back knows that it is the one it was."""
        known = memory.read() if isinstance(memory, _Remembered) else None
        tab_id, generation = known or (draw_id(self._ports.entropy, "t"), 0)
        return Identity(tab_id, draw_id(self._ports.entropy, "c"), generation + 1)

    # -- what the browser says ----------------------------------------------------------------------------------------

    def _happened(self, event: LifecycleEvent) -> None:
        if event == "pagehide":
            self._go()
        elif event == "pageshow":
            self._come_back()
        elif self._tab is None or self._returning or not self._shown.is_set():
            return  # whoever joins, or comes back, looks how things are then
        elif event == "freeze":
            self._stillness.stop()
            self._locks.drop(self._tab.identity.connection_id)
            self._tab.set_state(self._lifecycle.state())
        elif event == "resume":
            self._stillness.start()
            self._set_off()
        else:
            self._stillness.beat()
            self._tab.set_state(self._lifecycle.state())

    def _go(self) -> None:
        """The page goes. It may be suspended at once, and whatever it kept would starve the others."""
        self._visits += 1
        self._shown.clear()
        self._stillness.stop()
        self._drop_all()
        if self._tab is not None:
            try:
                self._tab.set_state(replace(self._tab.state, lifecycle="closing"))
            finally:
                self._tab.services.suspend()

    def _come_back(self) -> None:
        if self._shown.is_set():
            return
        self._shown.set()
        if self._tab is not None and self._leaving is None and not self._returning:
            self._returning = True
            self._tab.services.tasks.start(self._return(self._tab), "come back")

    async def _return(self, tab: Tab) -> None:
        try:
            identity = await self._arrive(_Remembered(self._memory, tab.identity))
        finally:
            self._returning = False
        if self._leaving is not None:
            return
        tab.services.resume()
        tab.rejoin(identity)
        self._stillness.start()
        self._set_off()

    def _set_off(self) -> None:
        """Take part (again), as things are now."""
        state = self._lifecycle.state()
        if state.lifecycle != "frozen":
            self._locks.admit(self.tab.identity.connection_id)
        self.tab.set_stalled(False)
        self.tab.set_state(state)

    # -- standing still -----------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        stall = self._options.stall_after
        return stall if self._tab is None or self._tab.state.visible else max(stall, HIDDEN_PAUSE)

    def _stood_still(self) -> None:
        self._locks.drop(self.tab.identity.connection_id)
        self.tab.set_stalled(True)

    def _going(self) -> None:
        self._locks.admit(self.tab.identity.connection_id)
        self.tab.set_stalled(False)


class _Remembered:
    """A page that comes back asks for the id that it had, not for one that another join of the page may have stored."""

    def __init__(self, memory: TabMemory, identity: Identity) -> None:
        self._memory = memory
        self._identity = identity

    def read(self) -> tuple[str, int] | None:
        return self._identity.tab_id, self._identity.generation

    def write(self, tab_id: str, generation: int) -> None:
        self._memory.write(tab_id, generation)
