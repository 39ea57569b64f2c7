"""The connection that ``apply`` gets from the SQLite store: while it is lent, nothing can end the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

SAVEPOINT = "tabhelm_operation"
_TRANSACTION, _SAVEPOINT = 22, 32  # sqlite3.h's codes of these actions; Python has no names for them


class _Cursor(sqlite3.Cursor):
    """After a statement with OR ROLLBACK, or a full disk, there is no transaction any more. SQLite would write whatever
    comes next all the same, and at once: an effect without its id, which comes again."""

    def execute(self, sql: str, parameters: Any = (), /) -> _Cursor:
        self._require_transaction()
        super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Any, /) -> _Cursor:
        self._require_transaction()
        super().executemany(sql, parameters)
        return self

    def executescript(self, sql_script: str, /) -> NoReturn:
        self.connection.executescript(sql_script)
        raise AssertionError("unreachable")

    def _require_transaction(self) -> None:
        connection = self.connection
        if isinstance(connection, LentConnection) and connection.is_lent and not connection.in_transaction:
            raise sqlite3.ProgrammingError("a statement before this one has rolled back the whole transaction")


class LentConnection(sqlite3.Connection):
    """The connection that ``apply`` gets: while it is lent, nothing can end the receiver's transaction."""

    is_lent = False
    _factories: tuple[Any, Any] = (None, str)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside, the application's code runs, and rows and texts are what it made of them; outside, they are ours."""
        self.is_lent = True
        self.row_factory, self.text_factory = self._factories
        try:
            yield
        finally:
            self._factories = self.row_factory, self.text_factory
            self.row_factory, self.text_factory = None, str
            self.is_lent = False

    def authorize(self, action: int, first: str | None, second: str | None, *place: str | None) -> int:
        """SQLite asks this when it prepares a statement."""
        ours = action == _TRANSACTION or (action == _SAVEPOINT and (second or "").lower() == SAVEPOINT)
        return sqlite3.SQLITE_DENY if ours and self.is_lent else sqlite3.SQLITE_OK

    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor: _Cursor = self.cursor()
        return cursor.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        cursor: _Cursor = self.cursor()
        return cursor.executemany(sql, parameters)

    def shut(self) -> None:
        super().close()

    def commit(self) -> NoReturn:
        self._refuse("commit()")

    def rollback(self) -> NoReturn:
        self._refuse("rollback()")

    def close(self) -> NoReturn:
        self._refuse("close()")

    def executescript(self, sql_script: str, /) -> NoReturn:
        self._refuse("executescript(), which commits first,")

    def __enter__(self) -> NoReturn:
        self._refuse("with connection")

    def __exit__(self, *exc: object) -> NoReturn:
        self._refuse("with connection")

    def _refuse(self, what: str) -> NoReturn:
        raise sqlite3.ProgrammingError(f"{what} is not for apply or setup: the receiver commits when they are done")
