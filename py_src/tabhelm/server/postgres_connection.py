"""The connection that ``apply`` gets from the PostgreSQL store: while it is lent, nothing can end the transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import psycopg
from psycopg.rows import TupleRow, tuple_row

from tabhelm.errors import TabhelmError
from tabhelm.server.postgres_opening import settings

SCHEMA_VERSION = 1
_ONE_AT_A_TIME = 0x7461_6268_656C_6D  # "tabhelm"
_SCHEMA = """
CREATE TABLE tabhelm_schema (version integer NOT NULL);
CREATE TABLE tabhelm_marks (
    id bytea PRIMARY KEY, subject text NOT NULL, domain text NOT NULL, resource text NOT NULL,
    epoch bigint NOT NULL, owner text NOT NULL
);
CREATE TABLE tabhelm_streams (
    id bytea NOT NULL, stream text NOT NULL, seq bigint NOT NULL, PRIMARY KEY (id, stream)
);
CREATE TABLE tabhelm_operations (
    id bytea PRIMARY KEY, subject text NOT NULL, op_id text NOT NULL, digest bytea NOT NULL, status text NOT NULL,
    detail text NOT NULL, expires_at double precision NOT NULL
);
CREATE INDEX tabhelm_operations_expiry ON tabhelm_operations (expires_at);
CREATE FUNCTION tabhelm_receiver_commits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('tabhelm.commit', true) IS DISTINCT FROM 'yes' THEN
        RAISE EXCEPTION 'COMMIT is not for apply: the receiver commits when it is done'
            USING HINT = 'By hand: SET LOCAL tabhelm.commit = ''yes''';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER tabhelm_receiver_commits AFTER INSERT OR UPDATE ON tabhelm_streams
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tabhelm_receiver_commits();
"""
# Every accepted write raises a stream's mark, so a COMMIT of the application sets the trigger off before anything is
# visible; it takes back the whole transaction.
COMMIT = "SET LOCAL tabhelm.commit = 'yes'; COMMIT"


class LentConnection(psycopg.Connection[TupleRow]):
    """Refuses, while it is lent, whatever ends a transaction or a connection. SQL that does so is refused by the
    database (``COMMIT``) or noticed by the store (``ROLLBACK``)."""

    _lent = False

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside, the application's code runs."""
        self._lent = True
        try:
            yield
        finally:
            self._lent = False

    def commit(self) -> None:
        self._refuse_lent("commit()")
        super().commit()

    def rollback(self) -> None:
        self._refuse_lent("rollback()")
        super().rollback()

    def close(self) -> None:
        self._refuse_lent("close()")
        super().close()

    def __enter__(self) -> NoReturn:
        raise self._refusal("with connection")

    def _refuse_lent(self, what: str) -> None:
        if self._lent:
            raise self._refusal(what)

    def _refusal(self, what: str) -> psycopg.ProgrammingError:
        return psycopg.ProgrammingError(f"{what} is not for apply or setup: the receiver commits when they are done")


def prepare(connection: psycopg.Connection[Any], lock_timeout: float) -> None:
    """Settings of a new connection: one transaction after the other on what they share, and durable commits."""
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    for statement, values in settings(lock_timeout):
        cursor.execute(statement, values)
    connection.commit()


def create_tables(connection: psycopg.Connection[Any]) -> str:
    """The receiver's own tables, in the open transaction. Processes that start at once come one after the other.

    Returns the schema that they are in, as queries name it.

    Raises:
        TabhelmError: there are tables of another version.
    """
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_ONE_AT_A_TIME,))
    exists = cursor.execute("SELECT to_regclass('tabhelm_schema') IS NOT NULL").fetchone()
    if exists == (True,):
        found = cursor.execute("SELECT version FROM tabhelm_schema").fetchone()
        if found != (SCHEMA_VERSION,):
            shown = "unknown" if found is None else found[0]
            raise TabhelmError(
                f"the database holds tabhelm tables of version {shown}; this is version {SCHEMA_VERSION}"
            )
    else:
        cursor.execute(_SCHEMA)
        cursor.execute("INSERT INTO tabhelm_schema VALUES (%s)", (SCHEMA_VERSION,))
    place = cursor.execute(
        "SELECT quote_ident(nspname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE pg_class.oid = 'tabhelm_marks'::regclass"
    ).fetchone()
    assert place is not None
    return str(place[0]).replace("%", "%%")  # for queries with values
