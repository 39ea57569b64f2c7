"""What the demo's receiver does with an operation: logs the effect and changes cases, in the receiver's transaction."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from tabhelm.server import Effect, Reject, Retry

_COLUMNS = (
    "op_id", "partition", "payload", "domain", "resource", "epoch", "stream", "seq", "owner", "accepted_at_ms",
)  # fmt: skip


def set_up(connection: sqlite3.Connection) -> None:
    """Create the demo's tables."""
    connection.execute(
        """CREATE TABLE IF NOT EXISTS effects (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            op_id TEXT NOT NULL, partition TEXT NOT NULL, payload TEXT NOT NULL,
            domain TEXT NOT NULL, resource TEXT NOT NULL, epoch INTEGER NOT NULL, stream TEXT NOT NULL,
            seq INTEGER NOT NULL, owner TEXT NOT NULL, accepted_at_ms INTEGER NOT NULL
        )"""
    )
    connection.execute(
        """CREATE TABLE IF NOT EXISTS cases (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, completed INTEGER NOT NULL DEFAULT 0
        )"""
    )


def apply(effect: Effect, connection: sqlite3.Connection) -> None:
    """Log the effect; if its payload is one of the demo's, change the case too.

    Payloads ``{"kind": "add" | "rename" | "complete", "case", "title"?}`` are the demo's. ``{"kind": "reject"}`` and
    ``{"kind": "retry"}``, each with a ``reason``, are refused so, for tests. All others are logged.
    """
    token = effect.token
    row = (
        effect.op_id, effect.partition, json.dumps(effect.payload), token.domain, token.resource, token.epoch,
        token.stream, token.seq, token.owner_id, round(effect.accepted_at * 1000),
    )  # fmt: skip
    marks = ", ".join("?" * len(_COLUMNS))
    connection.execute(f"INSERT INTO effects ({', '.join(_COLUMNS)}) VALUES ({marks})", row)
    if isinstance(effect.payload, dict):
        try:
            _change_case(effect.payload, connection)
        except UnicodeEncodeError as error:  # half of a surrogate pair: JSON can spell it, databases cannot
            raise Reject("a text of this case cannot be stored: it holds half a character") from error


def _change_case(payload: dict[str, Any], connection: sqlite3.Connection) -> None:
    kind, case, title = payload.get("kind"), payload.get("case"), payload.get("title")
    if kind == "reject":
        raise Reject(str(payload.get("reason", "the payload asks for it")))
    if kind == "retry":
        raise Retry(str(payload.get("reason", "the payload asks for it")))
    if not isinstance(case, str):
        return
    if kind == "add" and isinstance(title, str):
        # A case comes with its maker's id: a second one of that id is the same case under a newer title.
        connection.execute(
            "INSERT INTO cases (id, title) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET title = excluded.title",
            (case, title),
        )
    elif kind == "rename" and isinstance(title, str):
        connection.execute("UPDATE cases SET title = ? WHERE id = ?", (title, case))
    elif kind == "complete":
        connection.execute("UPDATE cases SET completed = 1 WHERE id = ?", (case,))


def read_effects(database: Path) -> list[dict[str, Any]]:
    """The accepted effects in order."""
    rows = _rows(database, f"SELECT {', '.join(_COLUMNS)} FROM effects ORDER BY number")
    return [{**row, "payload": json.loads(row["payload"])} for row in rows]


def read_cases(database: Path) -> list[dict[str, Any]]:
    """The cases in order of their making."""
    rows = _rows(database, "SELECT id, title, completed FROM cases ORDER BY number")
    return [{**row, "completed": bool(row["completed"])} for row in rows]


def read_overview(database: Path, newest: int) -> dict[str, Any]:
    """What the demo shows: the cases, how many effects were accepted, how many operation ids more than once (none, if
    all is well), and the ``newest`` of them, newest first."""
    rows = _rows(database, f"SELECT number, {', '.join(_COLUMNS)} FROM effects ORDER BY number DESC LIMIT {newest:d}")
    counts = _rows(database, "SELECT count(*) AS accepted, count(*) - count(DISTINCT op_id) AS doubled FROM effects")[0]
    return {
        "cases": read_cases(database),
        **counts,
        "newest": [{**row, "payload": json.loads(row["payload"])} for row in rows],
    }


def _rows(database: Path, query: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(database)
    try:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]
    finally:
        connection.close()
