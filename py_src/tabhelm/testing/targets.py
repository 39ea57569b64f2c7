"""The DevTools protocol beyond pages: which process holds a target, and a session with a target that is no page."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any

from playwright.async_api import CDPSession
from playwright.async_api import Error as PlaywrightError

from .errors import ChaosError, TabUnresponsive

TRACE_TIMEOUT = 60.0
_WORKER_TRACES = 5
_CATEGORIES = {"includedCategories": ["disabled-by-default-devtools.timeline"], "excludedCategories": ["*"]}


class ProcessMap:
    """Finds the operating system process of a page or a shared worker.

    The protocol tells it in one place only: a trace names, for each frame and each worker, the process that holds it.
    An empty trace costs about 50 ms. But the browser waits for every renderer to take part: 15 s for one that is
    stopped (SIGSTOP), 10 s for one that hangs and never took part before. So ``ChaosTab.stop`` and ``hang`` look up
    all pids first.
    """

    def __init__(self, browser_session: CDPSession) -> None:
        self._browser_session = browser_session
        self._one_trace = asyncio.Lock()  # the browser allows one trace at a time

    async def of_page(self, session: CDPSession) -> int:
        """Pid of the renderer that holds the main frame of the page of this session."""
        for event in await self._trace(session):
            if event["name"] == "TracingStartedInBrowser":
                for frame in event["args"].get("data", {}).get("frames", []):
                    if frame.get("isOutermostMainFrame") and "processId" in frame:
                        return int(frame["processId"])
        raise ChaosError("the browser's trace names no process for this tab: has its renderer crashed?")

    async def of_worker(self, target_id: str) -> int:
        """Pid of the renderer that holds this shared worker."""
        for _ in range(_WORKER_TRACES):  # a worker whose thread is busy right now may miss a trace
            for event in await self._trace(self._browser_session):
                if event["name"] == "TracingSessionIdForWorker" and event["args"]["data"]["workerId"] == target_id:
                    return int(event["pid"])
        raise ChaosError(f"the browser's trace names no process for the shared worker {target_id}: has it ended?")

    async def _trace(self, session: CDPSession) -> list[dict[str, Any]]:
        async with self._one_trace:
            events: list[dict[str, Any]] = []
            complete = asyncio.Event()

            def collect(message: dict[str, Any]) -> None:
                events.extend(message["value"])

            def finish(_: dict[str, Any]) -> None:
                complete.set()

            session.on("Tracing.dataCollected", collect)
            session.on("Tracing.tracingComplete", finish)
            try:
                async with asyncio.timeout(TRACE_TIMEOUT):
                    await session.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": _CATEGORIES})
                    await session.send("Tracing.end")
                    await complete.wait()
            except TimeoutError:
                raise TabUnresponsive(f"the browser finished no trace within {TRACE_TIMEOUT:g} s") from None
            finally:
                session.remove_listener("Tracing.dataCollected", collect)
                session.remove_listener("Tracing.tracingComplete", finish)
            return events


class TargetSession:
    """A DevTools session with any target, tunnelled through the browser's own session.

    Playwright offers sessions with pages only; messages to a shared worker therefore travel wrapped
    (``Target.sendMessageToTarget``).
    """

    def __init__(self, browser_session: CDPSession, session_id: str, label: str) -> None:
        self._browser_session = browser_session
        self._session_id = session_id
        self._label = label
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listeners: dict[str, list[Callable[[dict[str, Any]], None]]] = {}
        self._gone = False
        browser_session.on("Target.receivedMessageFromTarget", self._receive)
        browser_session.on("Target.detachedFromTarget", self._detached)

    @classmethod
    async def attach(cls, browser_session: CDPSession, target_id: str, label: str) -> TargetSession:
        """Attach to a target. ``label`` names it in errors.

        Raises:
            ChaosError: there is no such target (any more).
        """
        try:
            answer = await browser_session.send("Target.attachToTarget", {"targetId": target_id, "flatten": False})
        except PlaywrightError as error:
            raise ChaosError(f"cannot attach to {label}: {error.message}") from error
        return cls(browser_session, answer["sessionId"], label)

    def on(self, event: str, listener: Callable[[dict[str, Any]], None]) -> None:
        """Call ``listener`` with the parameters of each event of this name."""
        self._listeners.setdefault(event, []).append(listener)

    async def send(self, method: str, params: dict[str, Any] | None = None, *, timeout: float = 30.0) -> dict[str, Any]:
        """Send one command and return its result.

        Raises:
            ChaosError: the target refused the command or is gone.
            TabUnresponsive: no answer within ``timeout`` seconds.
        """
        if self._gone:
            raise ChaosError(f"{self._label} is gone")
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        message = json.dumps({"id": number, "method": method, "params": params or {}})
        try:
            async with asyncio.timeout(timeout):
                await self._browser_session.send(
                    "Target.sendMessageToTarget", {"sessionId": self._session_id, "message": message}
                )
                reply = await answer
        except TimeoutError:
            raise TabUnresponsive(f"{self._label} did not answer {method} within {timeout:g} s") from None
        except PlaywrightError as error:
            raise ChaosError(f"{self._label} cannot be reached: {error.message}") from error
        finally:
            self._answers.pop(number, None)
        if "error" in reply:
            raise ChaosError(f"{self._label} refused {method}: {reply['error'].get('message')}")
        result: dict[str, Any] = reply["result"]
        return result

    @property
    def gone(self) -> bool:
        """Whether the session has ended, by whomever."""
        return self._gone

    async def detach(self) -> None:
        """End the session; what it emulated (offline, …) ends with it. Never fails."""
        if not self._gone:
            self._lost()
            with contextlib.suppress(PlaywrightError):
                await self._browser_session.send("Target.detachFromTarget", {"sessionId": self._session_id})

    def _receive(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") != self._session_id:
            return
        message = json.loads(event["message"])
        if "id" in message:
            answer = self._answers.get(message["id"])
            if answer is not None and not answer.done():
                answer.set_result(message)
            return
        for listener in self._listeners.get(message["method"], []):
            listener(message.get("params", {}))
        if message["method"] == "Inspector.targetCrashed":
            self._lost()

    def _detached(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") == self._session_id:
            self._lost()

    def _lost(self) -> None:
        self._gone = True
        self._browser_session.remove_listener("Target.receivedMessageFromTarget", self._receive)
        self._browser_session.remove_listener("Target.detachedFromTarget", self._detached)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ChaosError(f"{self._label} is gone"))
