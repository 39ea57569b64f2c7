"""A real PostgreSQL for the tests: one for the session, a new schema in it for each test.

``postgres`` is the server, ``postgres_database`` the conninfo of a place of the test's own, empty at first. Without a
PostgreSQL the tests that ask for one are skipped; with ``TABHELM_REQUIRE_ENGINES=1`` they fail.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from tabhelm_build.postgres import PostgresGone, PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Without ``fsync``: no test cuts the power."""
    try:
        server = PostgresServer({"fsync": "off", "full_page_writes": "off"})
    except PostgresGone as error:
        if os.environ.get("TABHELM_REQUIRE_ENGINES") == "1":
            raise
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def postgres_database(postgres: PostgresServer) -> Iterator[str]:
    """The conninfo of a new empty schema: it is as good as a database, and cheap."""
    with postgres.schema(f"test_{next(_numbers)}") as conninfo:
        yield conninfo
