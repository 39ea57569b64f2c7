"""The PostgreSQL of the tests: found, told, installed or skipped; and run by itself."""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg
import pytest

from tabhelm_build.postgres import PostgresGone, PostgresServer, find_postgres, postgres_programs


def programs(folder: Path, version: str) -> Path:
    folder.mkdir()
    for name in ("initdb", "postgres"):
        (folder / name).write_text(f'#!/bin/sh\necho "{version}"\n')
        (folder / name).chmod(0o755)
    return folder


def test_the_one_that_the_user_names_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = programs(tmp_path / "mine", "postgres (PostgreSQL) 99")
    monkeypatch.setenv("TABHELM_POSTGRES", str(mine))
    assert find_postgres(install=False) == mine
    assert f"Using {mine} (postgres (PostgreSQL) 99)" in capsys.readouterr().err


def test_a_missing_one_is_told_in_one_line_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABHELM_POSTGRES", str(tmp_path))
    monkeypatch.delenv("TABHELM_REQUIRE_ENGINES", raising=False)
    assert find_postgres(install=False) is None
    said = capsys.readouterr().err
    assert said.startswith("The tests of PostgreSQL will be skipped: TABHELM_POSTGRES names") and said.count("\n") == 1
    monkeypatch.setenv("TABHELM_REQUIRE_ENGINES", "1")
    with pytest.raises(SystemExit, match="where initdb and postgres are not .TABHELM_REQUIRE_ENGINES=1"):
        find_postgres(install=False)


def test_one_that_does_not_start_says_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = programs(tmp_path / "broken", "postgres (PostgreSQL) 99")
    tmp_path.chmod(0o755)
    (folder / "postgres").write_text('#!/bin/sh\necho "no such luck" >&2\nexit 1\n')
    monkeypatch.setenv("TABHELM_POSTGRES", str(folder))
    with pytest.raises(PostgresGone), PostgresServer():
        raise AssertionError("unreachable")


def test_it_stops_crashes_starts_again_and_leaves_nothing() -> None:
    try:
        postgres_programs()
    except PostgresGone as error:
        pytest.skip(str(error))
    with PostgresServer({"fsync": "off"}) as server:
        with server.schema("mine") as conninfo, psycopg.connect(conninfo) as connection:
            connection.execute("CREATE TABLE t (x int)")
            assert connection.execute("SELECT current_schema()").fetchone() == ("mine",)
        with psycopg.connect(server.conninfo()) as connection:
            assert connection.execute("SELECT to_regclass('mine.t')").fetchone() == (None,)
        for how in (signal.SIGINT, signal.SIGQUIT):
            server.stop(how)
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(server.conninfo())
            server.start()
        folder = Path(psycopg.conninfo.conninfo_to_dict(server.conninfo())["host"])  # type: ignore[arg-type]
    assert not folder.exists()
