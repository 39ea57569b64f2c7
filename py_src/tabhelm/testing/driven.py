"""What the tabs of Firefox and WebKitGTK have in common: faults by signals to a process, and waiting from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from .errors import ChaosError, ScriptError, TabGone, TabUnresponsive, WaitTimeout
from .process import process_running, process_state
from .waiting import threw, wait_for

# A message, not a timer: timers of a hidden page come once a second.
HANG = """(ms) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); const end = performance.now() + ms; while (performance.now() < end) {} };
  port2.postMessage(null);
}"""


class ProcessTab(ABC):
    """A tab whose process the kernel can stop and kill; see :class:`~tabhelm.testing.driver.DrivenTab`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.log: deque[str] = deque(maxlen=2000)
        self._closed = False
        self._died = ""
        self._stopped_pid: int | None = None
        self._busy_until = 0.0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "crashed" if self._died else "open"
        return f"<{type(self).__name__} {self.number} {state} {self.url}>"

    # -- asking ------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def _browser_alive(self) -> bool: ...

    @property
    def gone(self) -> bool:
        return self._closed or bool(self._died) or not self._browser_alive

    @property
    def silent(self) -> bool:
        return self.gone or self._stopped_pid is not None or time.monotonic() < self._busy_until

    async def evaluate(self, js: str, arg: Any = None, *, timeout: float = 30.0) -> Any:
        self._require()
        deadline = time.monotonic() + timeout
        what = f"{self._label} did not answer within {timeout:g} s: {js[:200]}"
        # A page that cannot answer must not be asked: it would keep the driver from asking the others.
        while self.silent:
            if time.monotonic() > deadline:
                raise TabUnresponsive(what)
            await asyncio.sleep(0.02)
            self._require()
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(deadline - time.monotonic(), 0.1)):
                return await self._evaluate(js, arg)
        except TimeoutError as error:
            if isinstance(error, TabUnresponsive):
                raise
            raise TabUnresponsive(what) from None

    async def until(self, js: str, timeout: float = 30.0, what: str | None = None, *, arg: Any = None) -> Any:
        what = f"{what or js[:200]} in {self._label}"
        deadline = time.monotonic() + timeout

        async def ask() -> Any:
            try:
                return await self.evaluate(js, arg, timeout=max(deadline - time.monotonic(), 0.5))
            except Exception as error:
                if self._on_its_way(error):
                    return None
                if isinstance(error, ChaosError) and not isinstance(error, ScriptError):
                    raise
                raise ScriptError(threw(what, js, str(error))) from error

        try:
            return await wait_for(ask, timeout, what)
        except TabUnresponsive:
            raise WaitTimeout(f"waited {timeout:g} s for {what}; the tab did not answer") from None

    # -- ordinary life -----------------------------------------------------------------------------------------------

    async def back(self, *, timeout: float = 30.0) -> bool:
        here = await self.evaluate("() => performance.timeOrigin")
        await self._go_back()
        await self.until(
            "(left) => performance.timeOrigin !== left && document.readyState === 'complete'", timeout, arg=here
        )
        # Marked when it was left: a page that was loaded anew knows nothing of it.
        return bool(await self.evaluate("() => globalThis.tabhelmLeft === true"))

    # -- chaos -------------------------------------------------------------------------------------------------------

    async def hang(self, seconds: float) -> None:
        await self._note_pids()
        await self._begin(HANG, seconds * 1000)
        self._busy_until = time.monotonic() + seconds

    async def stop(self) -> None:
        pid = await self.pid()
        await self._note_pids()
        os.kill(pid, signal.SIGSTOP)
        self._stopped_pid = pid
        if os.path.isdir("/proc/self"):
            await wait_for(lambda: process_state(pid) == "T", 10.0, f"process {pid} to stop")

    async def cont(self) -> None:
        pid, self._stopped_pid = self._stopped_pid, None
        if pid is not None:
            os.kill(pid, signal.SIGCONT)

    async def kill_process(self, timeout: float = 30.0) -> None:
        pid = await self.pid()
        os.kill(pid, signal.SIGKILL)
        self._stopped_pid = None
        self._died = f"its process {pid} was killed"
        await wait_for(lambda: not process_running(pid), timeout, f"process {pid} to end")

    @abstractmethod
    async def pid(self) -> int: ...

    @abstractmethod
    async def _go_back(self) -> None: ...

    async def _mark_left(self) -> None:
        """Mark the document that is about to be left; see ``back``."""
        if not self.silent:
            await self.evaluate("() => { globalThis.tabhelmLeft = true; }")

    # -- inside ------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def _evaluate(self, js: str, arg: Any) -> Any: ...

    async def _begin(self, js: str, arg: Any) -> None:
        """Call a function after which the page may answer nothing any more."""
        await self.evaluate(js, arg)

    @abstractmethod
    def _on_its_way(self, error: Exception) -> bool:
        """Whether the error says that the page went to another document meanwhile."""

    @abstractmethod
    async def _note_pids(self) -> None:
        """Look up the pids of all tabs while they can still answer."""

    def _require(self) -> None:
        if self._closed:
            raise TabGone(f"{self._label} is closed")
        if self._died:
            raise TabGone(f"{self._label} is dead: {self._died}")

    def _absolute(self, url: str) -> str:
        return urljoin(self.url, url)

    @property
    def _label(self) -> str:
        return f"tab {self.number} ({self.url})"


def thread_names(pid: int) -> set[str]:
    """The names of a process' threads (at most 15 characters each); none if it is gone. Linux only."""
    found = set()
    for file in Path(f"/proc/{pid}/task").glob("*/comm"):
        try:
            found.add(file.read_text().strip())
        except OSError:  # that thread has just ended
            continue
    return found


def main_thread_seconds(pid: int) -> float:
    """How long the process' main thread ran on a processor so far; 0 if it is gone. Linux only."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def descendants(pid: int) -> list[int]:
    """The process' children, their children, and so on. Linux only."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found
