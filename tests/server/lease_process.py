"""A lease service on a real web server in a process of its own: ``python lease_process.py KIND DATABASE``.

``KIND`` is ``sqlite`` or ``postgres``. It prints its URL once it listens and ends with its standard input. A candidate
whose name begins with ``fatal`` gets its lease, and the process a SIGKILL before it answers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import MutableMapping
from typing import Any

from tabhelm.server import LeaseService, LeaseStore, SqliteLeaseStore
from tabhelm.server.asgi import Receive, Scope, Send
from tabhelm.server.lease_postgres import PostgresLeaseStore
from tabhelm_build.serving import serve_until_stdin_ends


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
    serve_until_stdin_ends(CrashBeforeAnswer(LeaseService(store)), timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
