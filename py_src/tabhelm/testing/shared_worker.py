"""A running SharedWorker, seen and disturbed from outside."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

from .errors import ChaosError
from .process import memory_pss, process_running
from .targets import TargetSession
from .waiting import wait_for

if TYPE_CHECKING:
    from .browser import ChaosBrowser

_FUNCTION = re.compile(r"\s*(async\s+)?(function\b|\([^()]*\)\s*=>|[\w$]+\s*=>)")


class SharedWorkerHandle:
    """One shared worker of a :class:`ChaosBrowser`, made by ``browser.shared_workers()``.

    It lives in the renderer process of the tab that created it, and dies with that process.
    """

    def __init__(self, browser: ChaosBrowser, target_id: str, url: str, name: str) -> None:
        self.browser = browser
        self.target_id = target_id
        self.url = url
        self.name = name
        self._session: TargetSession | None = None
        self._pid: int | None = None
        self._attaching = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<SharedWorkerHandle {self.name!r} {self.url}>"

    async def alive(self) -> bool:
        """Whether the browser still runs this worker."""
        return any(worker.target_id == self.target_id for worker in await self.browser.shared_workers())

    async def evaluate(self, js: str, arg: Any = None, *, timeout: float = 30.0) -> Any:
        """Run an expression or a function (``"(arg) => …"``) in the worker and return its awaited result (JSON values).

        Raises:
            TabUnresponsive: no result within ``timeout`` seconds: the worker hangs or is suspended.
            ChaosError: the code threw, or the worker is gone.
        """
        if _FUNCTION.match(js):
            js = f"({js})({json.dumps(arg)})"
        session = await self._connected()
        answer = await session.send(
            "Runtime.evaluate", {"expression": js, "awaitPromise": True, "returnByValue": True}, timeout=timeout
        )
        thrown = answer.get("exceptionDetails")
        if thrown:
            text = thrown.get("exception", {}).get("description") or thrown.get("text")
            raise ChaosError(f"{self._label} threw: {text}")
        return answer["result"].get("value")

    async def hang(self, seconds: float) -> None:
        """Keep the worker's thread busy for so long; returns at once, when the loop is about to start."""
        spin = "const end = performance.now() + ms; while (performance.now() < end) {}"
        await self.evaluate(f"(ms) => {{ setTimeout(() => {{ {spin} }}, 0); }}", seconds * 1000)

    async def offline(self, offline: bool) -> None:
        """Cut this worker off the network, or join it again: its requests fail, and ``navigator.onLine`` flips.

        The latter flips in the tabs of the same renderer process, too; their requests go on.
        """
        session = await self._connected()
        await session.send("Network.enable")
        conditions = {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await session.send("Network.emulateNetworkConditions", conditions)

    async def console(self) -> list[str]:
        """The worker's console messages so far, as far as the browser still has them, and its uncaught errors."""
        lines: list[str] = []
        session = await TargetSession.attach(self.browser._session, self.target_id, self._label)
        try:

            def on_console(event: dict[str, Any]) -> None:
                words = (str(part.get("value", part.get("description", part["type"]))) for part in event["args"])
                lines.append(f"{event['type']}: {' '.join(words)}")

            def on_error(event: dict[str, Any]) -> None:
                details = event["exceptionDetails"]
                lines.append(f"uncaught: {details.get('exception', {}).get('description') or details['text']}")

            session.on("Runtime.consoleAPICalled", on_console)
            session.on("Runtime.exceptionThrown", on_error)
            await session.send("Runtime.enable", timeout=5.0)  # replays what was logged before it answers
        finally:
            await session.detach()
        return lines

    async def pid(self) -> int:
        """Process id of the renderer that holds the worker: one of the tabs', or that of a tab closed by now."""
        if self._pid is None or not process_running(self._pid):
            self._pid = await self.browser._processes.of_worker(self.target_id)
        return self._pid

    async def memory_pss(self) -> int:
        """Proportional set size, in bytes, of the renderer process that holds the worker. Linux only."""
        return memory_pss(await self.pid())

    async def kill_process(self, timeout: float = 30.0) -> None:
        """Kill the renderer that holds the worker (SIGKILL) and the tabs that live there; waits until it is gone."""
        pid = await self.pid()
        self.browser.killed.add(pid)
        os.kill(pid, signal.SIGKILL)

        async def gone() -> bool:
            return not await self.alive()

        await wait_for(gone, timeout, f"{self._label} to die with its renderer {pid}")

    @property
    def _label(self) -> str:
        return f"shared worker {self.name!r} ({self.url})"

    async def _connected(self) -> TargetSession:
        async with self._attaching:
            if self._session is None or self._session.gone:
                # Gone is only the session, if the browser still lists the worker: it may have let go of it by itself.
                self._session = await TargetSession.attach(self.browser._session, self.target_id, self._label)
            return self._session
