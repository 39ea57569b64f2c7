"""A small HTTP proxy on the loopback interface that can be cut: "offline" for a browser that cannot be told so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Relay:
    """Passes requests on while it is ``open``; else breaks every connection, those that run included."""

    def __init__(self) -> None:
        self.port = 0
        self._open = True
        self._running: set[asyncio.StreamWriter] = set()

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator[Relay]:
        """Listen on a free port until the block ends."""
        self = cls()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.open = False

    @property
    def open(self) -> bool:
        return self._open

    @open.setter
    def open(self, value: bool) -> None:
        self._open = value
        if not value:
            for writer in self._running:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._running.add(writer)
        try:
            if self._open:
                await self._request(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # one of the two ends has gone: so does the other
        except asyncio.CancelledError:
            pass  # the loop ends; the server that made this task would complain of a cancelled one
        finally:
            self._running.discard(writer)
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for each connection: its target is rewritten, everything else is passed on as it is."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ")
        url = urlsplit(target)
        there, back = await asyncio.open_connection(url.hostname, url.port or 80)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        headers = b"\r\n".join(
            each for each in rest.split(b"\r\n") if not each.lower().startswith((b"connection:", b"proxy-"))
        ).rstrip(b"\r\n")
        back.write(f"{method} {path} {version}\r\nConnection: close\r\n".encode("latin-1") + headers + b"\r\n\r\n")
        self._running.add(back)
        sending = asyncio.ensure_future(_pump(reader, back))
        try:
            await _pump(there, writer)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
            self._running.discard(back)
            back.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    await writer.drain()
