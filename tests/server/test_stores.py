"""One suite for every store of fences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
from cases_store import CASES
from databases import Database

import tabhelm.server


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_store(database: Database, case: Callable[[Database], Awaitable[None]]) -> None:
    await case(database)


def test_sqlite_needs_no_psycopg_and_postgresql_says_what_it_needs() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import tabhelm.server as server\n"
        "server.SqliteFenceStore\n"
        "try: server.PostgresFenceStore\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "PostgresFenceStore needs psycopg" in done.stdout and "pip install '.[postgres]'" in done.stdout
    with pytest.raises(AttributeError, match="nonsense"):
        tabhelm.server.nonsense  # noqa: B018
