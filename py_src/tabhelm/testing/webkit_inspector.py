"""WebKitGTK's remote inspector, beside WebDriver: what it is asked is answered by each page for itself.

WebDriver ends its session when any of its pages crashes, and answers nothing while one page hangs; the inspector goes
on. MiniBrowser serves both at the address that its environment names (``WEBKIT_INSPECTOR_SERVER``). A message is its
length (4 bytes, big-endian), a byte of flags (1: little-endian), a name that ends with a zero byte, and a GVariant.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import struct
from collections.abc import Callable
from typing import Any

from .errors import BrowserGone, ChaosError, ScriptError, TabUnresponsive

_BROWSER = 1  # the browser's own process is the first that connected to its server
_AUTOMATION = 2  # WebDriver's own number: who else sets it up ends the session
_PROBES = 4
_PROBE_TIMEOUT = 10.0


class Inspector:
    """The connection to one MiniBrowser."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._pages: dict[int, PageInspector] = {}
        self._highest = 0
        self._adopted: asyncio.Future[PageInspector] | None = None
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def connect(cls, port: int) -> Inspector:
        """Join the inspector server on this port of the loopback interface."""
        self = cls(*await asyncio.open_connection("127.0.0.1", port))
        self._send("SetupInspectorClient", b"\0")
        return self

    async def adopt(self) -> PageInspector:
        """The inspector of the page that was opened last.

        Pages have numbers that grow. While WebDriver is connected as well it alone is told them, so they are tried.
        """
        self._adopted = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT):
                while True:
                    for number in range(self._highest + 1, self._highest + 1 + _PROBES):
                        if number != _AUTOMATION:
                            self._send("Setup", struct.pack("<QQ", _BROWSER, number))
                    done, _ = await asyncio.wait([self._adopted], timeout=2.0)
                    if done:
                        return self._adopted.result()
        except TimeoutError:
            raise ChaosError(f"WebKitGTK's inspector told of no new page within {_PROBE_TIMEOUT:g} s") from None
        finally:
            self._adopted = None

    async def close(self) -> None:
        """End the connection. Never fails."""
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._reading
        self._writer.close()

    def _to_page(self, number: int, message: str) -> None:
        self._send("SendMessageToBackend", struct.pack("<QQ", _BROWSER, number) + message.encode() + b"\0")

    def _send(self, name: str, body: bytes) -> None:
        content = name.encode() + b"\0" + body
        self._writer.write(struct.pack(">IB", len(content), 1) + content)

    async def _read(self) -> None:
        try:
            while True:
                length, _ = struct.unpack(">IB", await self._reader.readexactly(5))
                name, _, body = (await self._reader.readexactly(length)).partition(b"\0")
                if name == b"SendMessageToFrontend":
                    connection, number = struct.unpack_from("<QQ", body)
                    if connection == _BROWSER:
                        self._from_page(number, json.loads(body[16:].rstrip(b"\0")))
        except (asyncio.IncompleteReadError, ConnectionError):
            for page in self._pages.values():
                page._lost(BrowserGone("WebKitGTK closed its inspector: it has ended"))

    def _from_page(self, number: int, message: dict[str, Any]) -> None:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = PageInspector(self, number)
            self._highest = max(self._highest, number)
        page._receive(message)
        if self._adopted is not None and not self._adopted.done() and number == self._highest:
            self._adopted.set_result(page)


class PageInspector:
    """One page. Its inner target changes when a navigation takes it to another process."""

    def __init__(self, inspector: Inspector, number: int) -> None:
        self._inspector = inspector
        self._number = number
        self._target = ""
        self._ready = asyncio.Event()
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.on_console: Callable[[str], None] = lambda line: None
        """Called with each console message."""

    async def evaluate(self, expression: str) -> str:
        """Evaluate an expression that gives a promise of a string, and await that.

        Raises:
            ScriptError: it could not be evaluated, or the page went to another document meanwhile.
        """
        await self._ready.wait()
        began = await self._ask("Runtime.evaluate", {"expression": expression, "objectGroup": "driver"})
        if began.get("wasThrown") or "objectId" not in began["result"]:
            raise ScriptError(f"cannot evaluate {expression[:300]}: {began['result'].get('description')}")
        promise = {"promiseObjectId": began["result"]["objectId"], "returnByValue": True}
        done = await self._ask("Runtime.awaitPromise", promise)
        return str(done["result"].get("value"))

    async def begin(self, expression: str) -> None:
        """Evaluate an expression, and await nothing of what it gives: ``evaluate`` asks the page a second time."""
        await self._ready.wait()
        await self._ask("Runtime.evaluate", {"expression": expression})

    async def screenshot(self, timeout: float = 5.0) -> bytes:
        """The page as it is shown, as PNG."""
        size = {"x": 0, "y": 0, "width": 1280, "height": 900, "coordinateSystem": "Viewport"}
        try:
            async with asyncio.timeout(timeout):
                answer = await self._ask("Page.snapshotRect", size)
        except TimeoutError:
            raise TabUnresponsive("the inspector took no screenshot") from None
        return base64.b64decode(answer["dataURL"].partition(",")[2])

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._post(number, method, params)
            return await answer
        finally:
            self._answers.pop(number, None)

    def _post(self, number: int, method: str, params: dict[str, Any]) -> None:
        inner = json.dumps({"id": number, "method": method, "params": params})
        outer = {"targetId": self._target, "message": inner}
        self._inspector._to_page(
            self._number, json.dumps({"id": 0, "method": "Target.sendMessageToTarget", "params": outer})
        )

    def _receive(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Target.targetCreated" if not params["targetInfo"].get("isProvisional"):
                self._enter(params["targetInfo"]["targetId"])
            case "Target.didCommitProvisionalTarget":
                self._enter(params["newTargetId"])
            case "Target.targetDestroyed" if params["targetId"] == self._target:
                self._ready.clear()
                self._lost(ScriptError("the page went to another document, or died"))
            case "Target.dispatchMessageFromTarget" if params["targetId"] == self._target:
                self._from_target(json.loads(params["message"]))
            case _:
                if "error" in message:  # the target has just gone
                    self._lost(ScriptError(f"the page went to another document: {message['error'].get('message')}"))

    def _enter(self, target: str) -> None:
        self._lost(ScriptError("the page went to another document"))
        self._target = target
        for domain in ("Runtime", "Page", "Console"):
            self._post(-1, f"{domain}.enable", {})
        self._ready.set()

    def _from_target(self, message: dict[str, Any]) -> None:
        if "id" in message:
            answer = self._answers.get(message["id"])
            if answer is None or answer.done():
                return
            if "error" in message:
                why = str(message["error"].get("message"))
                if "Missing injected script" in why:  # its objects went with the document
                    why = f"the page went to another document: {why}"
                answer.set_exception(ScriptError(why))
            else:
                answer.set_result(message["result"])
            return
        params = message.get("params", {})
        match message["method"]:
            case "Page.frameNavigated" if "parentId" not in params["frame"]:
                self._lost(ScriptError("the page went to another document"))
            case "Console.messageAdded":
                self.on_console(f"{params['message']['level']}: {params['message']['text']}")

    def _lost(self, why: ChaosError) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(why)
