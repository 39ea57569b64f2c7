"""A model of a page's queues (``web/queue.mjs``, ``web/sending.mjs``)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tabhelm.errors import LeadershipLost
from tabhelm.ports.database import Opaque
from tabhelm.simulated.pagesession import Session
from tabhelm.simulated.pagework import AbortSignal

LOOK = 0.25
Send = Callable[[list[dict[str, Any]], "PageSending"], Awaitable[list[dict[str, Any]] | None]]
"""The page's own sender: operations (with their ``payload``), and what it may know of the attempt. Gives results as on
the wire; ``None``: all are committed."""


class PageSending:
    """One attempt, as the page's sender sees it."""

    def __init__(self, data: dict[str, Any], signal: AbortSignal, ensure: Callable[[], None]) -> None:
        self.token: dict[str, Any] = data["token"]
        self.attempt: int = data["attempt"]
        self.signal = signal
        self._header: str = data["header"]
        self._ensure = ensure

    def headers(self) -> dict[str, str]:
        """Raises ``LeadershipLost`` once the page must send nothing."""
        self._ensure()
        return {"Fencing-Token": self._header}


class PageQueue:
    """An offline queue, as its page sees it. ``send`` is the page's own sender, ``each``: for one operation at a time;
    ``headers`` its function of that name."""

    def __init__(
        self,
        session: Session,
        handle: str,
        name: str,
        scope: str | None,
        options: dict[str, Any],
        send: Send | None = None,
        headers: Callable[[], Awaitable[dict[str, str]]] | None = None,
    ) -> None:
        self.session = session
        self.handle = handle
        self.name = name
        self.scope = scope
        self.options = options
        self.last_stats: dict[str, Any] = {}
        self._send = send
        self._headers = headers
        self._calls: dict[int, AbortSignal] = {}

    def open(self) -> None:
        scope = {} if self.scope is None else {"scope": self.scope}
        functions: dict[str, Any] = {}
        if self._send is not None:
            functions["send" if self.options.get("each") else "sendBatch"] = True
        if self._headers is not None:
            functions["headers"] = True
        options = {key: value for key, value in self.options.items() if key != "each"} | functions
        self.session.post({"type": "queue", "queue": self.handle, "name": self.name, **scope, "options": options})

    def enqueue(self, payload: Any, *, partition: str = "default", op_id: str | None = None) -> asyncio.Task[str]:
        """Resolves with the operation's id once it is durable; never, if the page dies before. An ``Opaque`` goes as a
        structured clone."""
        drawn = op_id or f"op-{self.session.ports.entropy.token_bytes(8).hex()}"
        operation: dict[str, Any] = {"id": drawn, "partition": partition}
        params: dict[str, Any] = {"queue": self.handle, "operations": [operation]}
        if isinstance(payload, Opaque):
            text = repr(payload.value)
            operation |= {"digest": hashlib.sha256(text.encode()).hexdigest(), "size": len(text)}
            params["values"] = [payload]
        else:
            operation["payload"] = json.dumps(payload)

        async def call() -> str:
            await self.session.call("enqueue", params)
            return drawn

        return self.session.agent.start(call())

    def stats(self) -> asyncio.Task[Any]:
        return self._ask("stats", {})

    def dead_letters(self) -> asyncio.Task[Any]:
        """The letters; of those that are no JSON, ``payload`` is the value."""

        async def ask() -> list[dict[str, Any]]:
            answer = await self._ask("deadLetters", {})
            return [_read(letter, answer, lambda payload: payload) for letter in answer["letters"]]

        return self.session.agent.start(ask())

    def retry_dead(self, ids: list[str]) -> asyncio.Task[Any]:
        return self._ask("retryDead", {"ids": ids})

    def remove_dead(self, ids: list[str]) -> asyncio.Task[Any]:
        return self._ask("removeDead", {"ids": ids})

    def export_dead(self) -> asyncio.Task[Any]:
        return self._ask("exportDead", {})

    def resume(self) -> asyncio.Task[Any]:
        return self._ask("resumeQueue", {})

    def _ask(self, method: str, params: dict[str, Any]) -> asyncio.Task[Any]:
        return self.session.agent.start(self.session.call(method, {"queue": self.handle, **params}))

    # ---- the page's own functions -----------------------------------------------------------------------------------

    def asked(self, data: dict[str, Any]) -> None:
        """The engine wants something sent, or headers, or no longer."""
        if data["type"] == "unsend":
            self._stop(data["call"], str(data["reason"]))
        elif data["type"] == "headers":
            self._answer(data, self._tell_headers)
        else:
            self._answer(data, self._run_sender)

    def down(self, reason: str) -> None:
        """The page stands still from now on, or its connection is gone: nobody waits for what is under way."""
        for call in list(self._calls):
            self._stop(call, reason)

    def _stop(self, call: int, reason: str) -> None:
        signal = self._calls.pop(call, None)
        if signal is not None:
            signal.abort(LeadershipLost(self.name, reason))
            if reason == "doubt":
                self.session.post({"type": "sent", "queue": self.handle, "call": call, "lost": reason})

    async def _run_sender(self, data: dict[str, Any], signal: AbortSignal) -> dict[str, Any]:
        assert self._send is not None

        def ensure() -> None:
            if not signal.aborted and self.session.doubts(self.session.settings.stall_after):
                self._stop(data["call"], "doubt")
            if signal.reason is not None:
                raise signal.reason

        ensure()
        operations = [_read(operation, data, json.loads) for operation in data["operations"]]
        results = await self._send(operations, PageSending(data, signal, ensure))
        return {"results": [{"status": "committed"}] * len(operations) if results is None else results}

    async def _tell_headers(self, data: dict[str, Any], signal: AbortSignal) -> dict[str, Any]:
        assert self._headers is not None
        return {"headers": await self._headers()}

    def _answer(
        self, data: dict[str, Any], work: Callable[[dict[str, Any], AbortSignal], Awaitable[dict[str, Any]]]
    ) -> None:
        call, signal = int(data["call"]), AbortSignal()
        self._calls[call] = signal

        def look() -> None:
            if self._calls.get(call) is not signal:
                return
            if self.session.doubts(self.session.settings.stall_after):
                self._stop(call, "doubt")
            else:
                self.session.ports.clock.call_later(LOOK, look)

        async def run() -> None:
            try:
                told = await work(data, signal)
            except Exception as error:
                told = {"error": {"name": type(error).__name__, "message": str(error)}}
            if self._calls.get(call) is signal:
                del self._calls[call]
                self.session.post({"type": "sent", "queue": self.handle, "call": call, **told})

        self.session.ports.clock.call_later(LOOK, look)
        self.session.agent.start(run())


def _read(view: dict[str, Any], data: dict[str, Any], loads: Callable[[Any], Any]) -> dict[str, Any]:
    rest = {key: item for key, item in view.items() if key not in ("payload", "value")}
    payload = data["values"][view["value"]] if "value" in view else loads(view["payload"])
    return rest | {"payload": payload}
