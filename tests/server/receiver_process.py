"""A receiver on a real web server in a process of its own: ``python receiver_process.py DATABASE BUSY_TIMEOUT CRASH``.

It prints its port once it listens and ends with its standard input. ``apply`` counts and logs. At an operation with the
id ``fatal`` it gets a SIGKILL inside the transaction (``CRASH`` is ``applying``), after it and before the answer
(``answering``), or not at all (``never``).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import MutableMapping
from typing import Any, NoReturn

import uvicorn

from tabhelm.server import Effect, FencedReceiver, SqliteFenceStore
from tabhelm.server.asgi import Receive, Scope, Send

CRASH = sys.argv[3]


def create_tables(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS log (n INTEGER PRIMARY KEY AUTOINCREMENT, op_id TEXT, partition TEXT, payload TEXT,"
        " epoch INTEGER, stream TEXT, seq INTEGER, owner TEXT)"
    )
    connection.execute("CREATE TABLE IF NOT EXISTS total (n INTEGER)")


def apply(effect: Effect, connection: sqlite3.Connection) -> None:
    token = effect.token
    connection.execute(
        "INSERT INTO log (op_id, partition, payload, epoch, stream, seq, owner) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            effect.op_id,
            effect.partition,
            json.dumps(effect.payload),
            token.epoch,
            token.stream,
            token.seq,
            token.owner_id,
        ),
    )
    # Read, then write: only a transaction that excludes the others gets this right.
    (before,) = connection.execute("SELECT coalesce(max(n), 0) FROM total").fetchone()
    connection.execute("INSERT INTO total VALUES (?)", (before + 1,))
    if CRASH == "applying" and effect.op_id == "fatal":
        _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class CrashBeforeAnswer:
    """Kills the process where the receiver of a fatal operation begins its answer."""

    def __init__(self, receiver: FencedReceiver[sqlite3.Connection]) -> None:
        self._receiver = receiver

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        crash = False

        async def listening() -> MutableMapping[str, Any]:
            nonlocal crash
            message = await receive()
            crash = crash or (CRASH == "answering" and b'"fatal"' in message.get("body", b""))
            return message

        async def answering(message: MutableMapping[str, Any]) -> None:
            if crash:
                _die()
            await send(message)

        await self._receiver(scope, listening, answering if scope["type"] == "http" else send)


def main(database: str, busy_timeout: float) -> None:
    store = SqliteFenceStore(database, setup=create_tables, busy_timeout=busy_timeout)
    config = uvicorn.Config(CrashBeforeAnswer(FencedReceiver(apply, store)), log_level="warning", access_log=False)
    server = uvicorn.Server(config)

    def end_with_stdin() -> None:
        while os.read(0, 1024):
            pass
        server.should_exit = True

    # Named TCP: asyncio sets TCP_NODELAY on connections of such a listener only, else each answer takes 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=end_with_stdin, daemon=True).start()
        server.run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
