"""A real database of each kind that a receiver can keep its marks in, and the same effects in the SQL of each."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tabhelm.server import Effect, FenceStore, PostgresFenceStore, Reject, Retry, SqliteFenceStore


class Database(Protocol):
    """``kind`` and ``address`` are what ``open_store`` makes a store from, in any process."""

    kind: str
    address: str

    def store(self, **options: Any) -> FenceStore[Any]:
        """One more store on it; keyword arguments go to its class."""
        ...

    def query(self, statement: str) -> list[Any]:
        """Look behind the receiver's back."""
        ...

    def close(self) -> None: ...


class Sqlite:
    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = str(path)

    def store(self, **options: Any) -> SqliteFenceStore:
        return SqliteFenceStore(self.path, **{"setup": create_tables, **options})

    def query(self, statement: str) -> list[Any]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def close(self) -> None: ...


class Postgres:
    kind = "postgres"

    def __init__(self, conninfo: str) -> None:
        self.address = conninfo
        self._connection = psycopg.connect(conninfo, autocommit=True)

    def store(self, **options: Any) -> PostgresFenceStore:
        return PostgresFenceStore(self.address, **{"setup": create_tables, "pool_size": 4, **options})

    def query(self, statement: str) -> list[Any]:
        return self._connection.execute(statement.encode()).fetchall()

    def close(self) -> None:
        self._connection.close()


def open_store(kind: str, address: str, **options: Any) -> FenceStore[Any]:
    if kind == "sqlite":
        return SqliteFenceStore(address, **options)
    return PostgresFenceStore(address, **options)


def create_tables(connection: Any) -> None:
    number = "INTEGER PRIMARY KEY" if isinstance(connection, sqlite3.Connection) else "SERIAL PRIMARY KEY"
    connection.execute(f"CREATE TABLE IF NOT EXISTS applied (n {number}, op_id TEXT, subject TEXT, at REAL)")
    connection.execute("CREATE TABLE IF NOT EXISTS total (n INTEGER)")


def insert(connection: Any, op_id: str, subject: str = "", at: float = 0.0) -> None:
    marks = "?, ?, ?" if isinstance(connection, sqlite3.Connection) else "%s, %s, %s"
    connection.execute(f"INSERT INTO applied (op_id, subject, at) VALUES ({marks})", (op_id, subject, at))


def apply(effect: Effect, connection: Any) -> None:
    """Writes first and complains afterwards, so that the undoing shows."""
    insert(connection, effect.op_id, effect.subject, effect.accepted_at)
    match effect.payload:
        case {"reject": reason, **rest}:
            raise Reject(reason, final=bool(rest.get("final", True)))
        case {"retry": reason, "after": after}:
            raise Retry(reason, after)
        case {"sql": statement}:
            connection.execute(statement)
        case {"swallowed": statement}:
            try:
                connection.execute(statement)
            except (sqlite3.Error, psycopg.Error):
                pass
        case {"call": name, "arguments": arguments}:
            getattr(connection, name)(*arguments)
        case "bug":
            raise KeyError("a secret of the application")
