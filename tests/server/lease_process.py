"""A lease service on a real web server in a process of its own: ``python lease_process.py KIND DATABASE``.

``KIND`` is ``sqlite`` or ``postgres``. It prints its port once it listens and ends with its standard input. A candidate
whose name begins with ``fatal`` gets its lease, and the process a SIGKILL before it answers.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import MutableMapping
from typing import Any

import uvicorn

from tabhelm.server import LeaseService, LeaseStore, SqliteLeaseStore
from tabhelm.server.asgi import Receive, Scope, Send
from tabhelm.server.lease_postgres import PostgresLeaseStore


class CrashBeforeAnswer:
    def __init__(self, service: LeaseService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fatal = False

        async def listening() -> MutableMapping[str, Any]:
            nonlocal fatal
            message = await receive()
            fatal = fatal or b'"fatal' in message.get("body", b"")
            return message

        async def answering(message: MutableMapping[str, Any]) -> None:
            if fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            await send(message)

        http = scope["type"] == "http"
        await self._service(scope, listening if http else receive, answering if http else send)


def main(kind: str, database: str) -> None:
    store: LeaseStore = SqliteLeaseStore(database) if kind == "sqlite" else PostgresLeaseStore(database)
    config = uvicorn.Config(
        CrashBeforeAnswer(LeaseService(store)), log_level="warning", access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)

    def end_with_stdin() -> None:
        while os.read(0, 1024):
            pass
        server.should_exit = True

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=end_with_stdin, daemon=True).start()
        server.run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
