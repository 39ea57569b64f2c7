"""A receiver by itself, on SQLite, for senders with a bearer token: ``uvicorn plain_asgi:app``.

In the page: ``tab.queue("mutations", { endpoint: "/", headers: () => ({ Authorization: `Bearer ${accessToken}` }) })``.
"""

from __future__ import annotations

import hmac
import os
import sqlite3
from collections.abc import MutableMapping
from typing import Any

from tabhelm.server import Denied, Effect, FencedReceiver, Reject, SqliteFenceStore

KEYS = {"ada": os.environ.get("ADAS_KEY", "ada's key"), "bob": os.environ.get("BOBS_KEY", "bob's key")}


def create_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS cases (owner TEXT, id TEXT, title TEXT, PRIMARY KEY (owner, id))")


def apply(effect: Effect, connection: sqlite3.Connection) -> None:
    match effect.payload:
        case {"id": str(case), "title": str(title)} if title:
            connection.execute("INSERT OR REPLACE INTO cases VALUES (?, ?, ?)", (effect.subject, case, title))
        case _:
            raise Reject("a case has an id and a title")


def authenticate(scope: MutableMapping[str, Any]) -> str:
    """Whose request it is. The fencing token does not say so: whoever may send can make one up."""
    given = dict(scope["headers"]).get(b"authorization", b"")
    for name, key in KEYS.items():
        if hmac.compare_digest(given, f"Bearer {key}".encode()):
            return name
    raise Denied(401, "a bearer token of somebody known is needed")


app = FencedReceiver(
    apply,
    SqliteFenceStore(os.environ.get("DATABASE", "cases.db"), setup=create_tables),
    authenticate=authenticate,
)
