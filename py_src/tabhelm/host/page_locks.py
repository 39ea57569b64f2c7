"""A page's locks and single flights: asked for and held in the engine, the bodies run in the page.

Each request has a handle of the page's, never used twice: a page that asks again after a freeze takes a new one, so
that nothing said before it can be taken for an answer to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tabhelm.errors import (
    FlightFailed,
    LockLost,
    LockTimeout,
    LockWithdrawn,
    MalformedMessage,
    TabhelmError,
    TooManyLocks,
)
from tabhelm.host.wire import Message, field, milliseconds, optional_text
from tabhelm.json_text import loads
from tabhelm.locking import MAX_REASON, Lock, check_size, fly, lock_name
from tabhelm.services import Services
from tabhelm.tab import Tab

MOST_OPEN = 1000
"""Requests that one page may have open at a time."""
Post = Callable[[dict[str, Any]], None]


class PageLocks:
    """Those of one session. ``handlers`` are what it makes of the page's messages."""

    def __init__(self, tab: Tab, services: Services, post: Post) -> None:
        self._tab = tab
        self._services = services
        self._post = post
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._held: dict[str, Lock] = {}
        self._flying: dict[str, asyncio.Future[Message]] = {}
        self.handlers: dict[str, Callable[[Message], None]] = {"lock": self._lock, "unlock": self._unlock}

    def _lock(self, message: Message) -> None:
        handle = field(message, "lock", str)
        if handle in self._asking or handle in self._held:
            raise MalformedMessage(f"'lock' message: handle {handle!r} is in use")
        services = self._services
        try:
            if len(self._asking) + len(self._held) >= MOST_OPEN:
                raise TooManyLocks(f"this page holds and waits for {MOST_OPEN} locks already: end some first")
            flight = field(message, "flight", bool, False)
            kind, key = "single-flight" if flight else "mutation", field(message, "name", str)
            scope = optional_text(message, "scope")
            name = lock_name(services.app, services.protocol, kind, key, scope)  # type: ignore[arg-type]
            work = self._fly(handle, key, name) if flight else self._hold(handle, name, message)
        except TabhelmError as error:
            self._refuse(handle, error)
            return
        task = services.tasks.start(self._ask(handle, work), "page lock")
        self._asking[handle] = task
        task.add_done_callback(lambda _: self._asking.pop(handle, None))

    def _unlock(self, message: Message) -> None:
        """The body has ended, or the page wants the lock no more. What is not open is none of ours any more."""
        handle = field(message, "lock", str)
        lock = self._held.pop(handle, None)
        if lock is not None:
            lock.release()
            return
        outcome: dict[str, Any] | None = message.get("outcome")
        flying = self._flying.get(handle)
        if flying is not None and isinstance(outcome, dict) and not flying.done():
            flying.set_result(outcome)
        elif (task := self._asking.get(handle)) is not None:
            task.cancel()

    async def _ask(self, handle: str, work: Awaitable[None]) -> None:
        try:
            await work
        except LockLost as lost:
            self._say(handle, "gone", reason=lost.reason)
        except LockWithdrawn:
            self._say(handle, "gone", reason="withdrawn")
        except TabhelmError as error:
            self._refuse(handle, error)

    async def _hold(self, handle: str, name: str, message: Message) -> None:
        given = message.get("timeoutMs")
        at_once = given == 0 and not isinstance(given, bool)
        lock = await self._tab.locks.acquire(
            name,
            shared=field(message, "shared", bool, False),
            if_available=field(message, "ifAvailable", bool, False),
            timeout=None if given is None else 0.0 if at_once else milliseconds(message, "timeoutMs", 0.0),
            again=False,
        )
        self._held[handle] = lock
        self._say(handle, "granted")
        lock.on_lost(lambda reason: self._lost(handle, reason))

    def _lost(self, handle: str, reason: str) -> None:
        self._held.pop(handle, None)
        self._say(handle, "gone", reason=reason)

    async def _fly(self, handle: str, key: str, name: str) -> None:
        async def run(_: Lock) -> str | None:
            self._flying[handle] = asyncio.get_running_loop().create_future()
            self._say(handle, "granted")
            return check_size(_result(key, await self._flying[handle]), key)

        try:
            outcome = await fly(self._services.flights, self._tab.locks, name, run, again=False)
        except FlightFailed:
            return  # in this page: it knows
        finally:
            led = self._flying.pop(handle, None) is not None
        if not led:
            error = {"name": outcome.error, "message": outcome.reason, "code": outcome.code} if outcome.error else None
            self._say(handle, "answered", value=outcome.value, error=error)

    def _refuse(self, handle: str, error: TabhelmError) -> None:
        problem: dict[str, Any] = {"code": error.code, "message": str(error)}
        if isinstance(error, LockTimeout):
            problem["holder"] = error.holder
            problem["heldForMs"] = None if error.held_for is None else error.held_for * 1000
        self._say(handle, "refused", error=problem)

    def _say(self, handle: str, state: str, **more: Any) -> None:
        self._post({"type": "lock", "lock": handle, "state": state, **more})


def _result(key: str, outcome: Message) -> str | None:
    """JSON text of what a page's work gave.

    Raises:
        FlightFailed: it failed.
        MalformedMessage: it makes no sense.
    """
    error = outcome.get("error")
    if error is not None:
        told = error if isinstance(error, dict) else {}
        texts = (told.get(name) for name in ("name", "message", "code"))
        kind, reason, code = (text if isinstance(text, str) else "" for text in texts)
        raise FlightFailed(key, kind[:100] or "Error", reason[:MAX_REASON], code[:100])
    value = optional_text(outcome, "value")
    try:
        if value is not None:
            loads(value)
    except ValueError as problem:
        raise MalformedMessage(f"'unlock' message: the result of {key!r} is no JSON text: {problem}") from None
    return value
