"""Firefox's own debugger port: run code with the browser's rights, for what WebDriver BiDi has no command for.

The protocol ("remote debugging protocol") is JSON packets, each behind its length: ``{"to": actor, "type": …}``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import BrowserGone, ChaosError
from .waiting import wait_for

PREFERENCES = {
    "devtools.chrome.enabled": True,
    "devtools.debugger.remote-enabled": True,
    "devtools.debugger.prompt-connection": False,
}

# The actor evaluates plain scripts; what a promise came to is asked for.
_START = """(async (args) => {{ {code} }})({args}).then(
  (value) => (globalThis.tabhelmAnswers ??= {{}})[{number}] = JSON.stringify({{ value }}),
  (error) =>
    (globalThis.tabhelmAnswers ??= {{}})[{number}] = JSON.stringify({{ error: `${{error}} ${{error.stack}}` }}),
); 0"""
_TAKE = """(() => {{
  const answers = (globalThis.tabhelmAnswers ??= {{}}), answer = answers[{number}];
  delete answers[{number}];
  return answer ?? null;
}})()"""


class FirefoxConsole:
    """A console in Firefox' parent process, over a socket that only its starter knows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._actor = ""

    @classmethod
    async def connect(cls, socket: Path, timeout: float = 30.0) -> FirefoxConsole:
        """Join a Firefox that was started with ``--start-debugger-server=<socket>``.

        Raises:
            WaitTimeout, ChaosError: it opened no such socket, or speaks otherwise.
        """
        await wait_for(socket.exists, timeout, f"Firefox to open its debugger socket {socket}")
        self = cls(*await asyncio.open_unix_connection(socket))
        await self._read()  # its greeting
        await self._send({"to": "root", "type": "getProcess", "id": 0})
        descriptor = await self._until(lambda packet: "processDescriptor" in packet)
        await self._send({"to": descriptor["processDescriptor"]["actor"], "type": "getTarget"})
        target = await self._until(lambda packet: "process" in packet)
        self._actor = target["process"]["consoleActor"]
        return self

    async def run(self, code: str, *args: Any, timeout: float = 30.0) -> Any:
        """Run the body of an async function of ``args`` in the parent process and return its result (JSON values).

        Raises:
            ChaosError: it threw, or nothing came within ``timeout`` seconds.
        """
        number = next(self._numbers)
        await self._evaluate(_START.format(code=code, args=json.dumps(args), number=number))
        text = await wait_for(
            lambda: self._evaluate(_TAKE.format(number=number)), timeout, f"Firefox to run {code[:80]}", interval=0.005
        )
        answer = json.loads(text or "{}")
        if "error" in answer:
            raise ChaosError(f"Firefox could not run {code[:200]}: {answer['error']}")
        return answer.get("value")

    def close(self) -> None:
        """End the connection. Never fails."""
        self._writer.close()

    async def _evaluate(self, text: str) -> str | None:
        async with self._turn:
            await self._send({"to": self._actor, "type": "evaluateJSAsync", "text": text})
            answer = await self._until(lambda packet: packet.get("type") == "evaluationResult")
        if answer.get("hasException"):
            raise ChaosError(f"Firefox refused {text[:200]}: {answer.get('exceptionMessage')}")
        result = answer["result"]
        return result if isinstance(result, str) else None

    async def _send(self, packet: dict[str, Any]) -> None:
        data = json.dumps(packet).encode()
        self._writer.write(b"%d:%s" % (len(data), data))
        await self._writer.drain()

    async def _read(self) -> dict[str, Any]:
        try:
            length = await self._reader.readuntil(b":")
            packet: dict[str, Any] = json.loads(await self._reader.readexactly(int(length[:-1])))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise BrowserGone("Firefox closed its debugger port: it has ended") from error
        return packet

    async def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            packet = await self._read()
            if "error" in packet:
                raise ChaosError(f"Firefox's debugger refused: {packet['error']}: {packet.get('message')}")
            if wanted(packet):
                return packet
