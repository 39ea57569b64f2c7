"""A receiver on a real web server in a process of its own:
``python receiver_process.py KIND DATABASE BUSY_TIMEOUT CRASH [CLOCK]``.

It prints its URL once it listens and ends with its standard input. ``apply`` counts and logs. At an operation with the
id ``fatal`` it gets a SIGKILL inside the transaction (``CRASH`` is ``applying``), after it and before the answer
(``answering``), or not at all (``never``). ``CLOCK`` is a file that says what time it is, in seconds since 1970.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, NoReturn

from databases import open_store

from tabhelm.server import Effect, FencedReceiver
from tabhelm.server.asgi import Receive, Scope, Send
from tabhelm_build.serving import serve_until_stdin_ends

CRASH = sys.argv[4]


def create_tables(connection: Any) -> None:
    number = "INTEGER PRIMARY KEY AUTOINCREMENT" if isinstance(connection, sqlite3.Connection) else "SERIAL PRIMARY KEY"
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS log (n {number}, op_id TEXT, partition TEXT, payload TEXT,"
        " resource TEXT, epoch INTEGER, stream TEXT, seq INTEGER, owner TEXT)"
    )
    connection.execute("CREATE TABLE IF NOT EXISTS total (resource TEXT, n INTEGER)")


def apply(effect: Effect, connection: Any) -> None:
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    token = effect.token
    row = (
        *(effect.op_id, effect.partition, json.dumps(effect.payload), token.resource),
        *(token.epoch, token.stream, token.seq, token.owner_id),
    )
    connection.execute(
        "INSERT INTO log (op_id, partition, payload, resource, epoch, stream, seq, owner)"
        f" VALUES ({', '.join([mark] * len(row))})",
        row,
    )
    # Read, then write: only a transaction that excludes the others of its resource gets this right.
    (before,) = connection.execute(
        f"SELECT coalesce(max(n), 0) FROM total WHERE resource = {mark}", (token.resource,)
    ).fetchone()
    connection.execute(f"INSERT INTO total VALUES ({mark}, {mark})", (token.resource, before + 1))
    if CRASH == "applying" and effect.op_id == "fatal":
        _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class CrashBeforeAnswer:
    """Kills the process where the receiver of a fatal operation begins its answer."""

    def __init__(self, receiver: FencedReceiver[Any]) -> None:
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


def main(kind: str, database: str, busy_timeout: float, clock: str | None = None) -> None:
    store = open_store(kind, database, setup=create_tables, busy_timeout=busy_timeout)
    now = time.time if clock is None else lambda: float(Path(clock).read_text())
    receiver = FencedReceiver(apply, store, retention=100, clock=now)
    serve_until_stdin_ends(CrashBeforeAnswer(receiver))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[5:])
