"""Find a PostgreSQL for the tests, or install it; and run one that is nobody else's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import LiteralString

from tabhelm_build.bootstrap import fail, say

_PACKAGE = "postgresql"
_HELP = (
    f"install it (Debian: apt-get install {_PACKAGE}), or name the folder of initdb and postgres in TABHELM_POSTGRES"
)
_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/pgsql/bin")
_PATIENCE = 60.0
"""Seconds for it to start or to stop: a busy machine must not fail a test."""


class PostgresGone(Exception):
    """There is no PostgreSQL, or it does not start; the text says what to do."""


def find_postgres(install: bool = True) -> Path | None:
    """The folder of PostgreSQL's programs, installed by apt-get if it is missing and we may; ``None`` without it.

    Says which, on standard error. With ``TABHELM_REQUIRE_ENGINES=1`` a missing one is an error.
    """
    if _why_not() and install and shutil.which("apt-get") and os.geteuid() == 0:
        say(f"Installing the system's package {_PACKAGE} …")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", _PACKAGE]):
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                say(f"{' '.join(command)} failed: {' '.join((done.stdout + done.stderr).strip().splitlines()[-1:])}")
    if why := _why_not():
        if os.environ.get("TABHELM_REQUIRE_ENGINES") == "1":
            fail(f"{why} (TABHELM_REQUIRE_ENGINES=1 asks for every engine)")
        say(f"The tests of PostgreSQL will be skipped: {why}")
        return None
    folder = postgres_programs()
    say(f"Using {folder} ({_version(folder)})")
    return folder


def postgres_programs() -> Path:
    """The folder with ``initdb`` and ``postgres``: ``TABHELM_POSTGRES``, the path's, the newest of the usual places.

    Raises:
        PostgresGone: there is none.
    """
    if chosen := os.environ.get("TABHELM_POSTGRES"):
        if not _complete(Path(chosen)):
            raise PostgresGone(f"TABHELM_POSTGRES names {chosen}, where initdb and postgres are not")
        return Path(chosen)
    for folder in _candidates():
        if _complete(folder):
            return folder
    raise PostgresGone(f"no PostgreSQL was found: {_HELP}")


def _candidates() -> Iterable[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    found = [folder for pattern in _PLACES for folder in Path("/").glob(pattern.lstrip("/"))]
    yield from sorted(found, key=lambda folder: [int(part) for part in re.findall(r"\d+", str(folder))], reverse=True)


def _complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres"))


def _why_not() -> str:
    try:
        _version(postgres_programs())
    except PostgresGone as error:
        return str(error)
    return ""


def _version(folder: Path) -> str:
    done = _call([str(folder / "postgres"), "--version"], 30)
    return done.stdout.strip()


class PostgresServer:
    """A PostgreSQL of its own in a temporary folder, for whoever starts it: it listens on a Unix socket there alone.

    ``settings`` are lines of its configuration. As root it runs as ``postgres`` or ``nobody``, for it refuses to be
    root. Leaving the context stops it and deletes everything.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = {
            "listen_addresses": "",
            "max_connections": "60",
            "shared_buffers": "32MB",
            "logging_collector": "off",
            **(settings or {}),
        }
        self._programs = postgres_programs()
        self._user, self._group = _unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="tabhelm-pg-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        try:
            self._make()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def conninfo(self) -> str:
        """How to connect to it, as its superuser and without a password."""
        return f"host={self._folder} user=tabhelm dbname=postgres"

    @contextmanager
    def schema(self, name: str) -> Iterator[str]:
        """A new empty schema; gives a conninfo whose tables are in it alone, and drops it afterwards.

        It takes a thousandth of the time that a database of its own would.
        """
        import psycopg
        from psycopg import sql

        def run(statement: LiteralString) -> None:  # each in a session of its own: a test may end all of them
            with psycopg.connect(self.conninfo(), autocommit=True, options="-c lock_timeout=10s") as connection:
                connection.execute(sql.SQL(statement).format(sql.Identifier(name)))

        run("CREATE SCHEMA {}")
        try:
            yield f"{self.conninfo()} options='-c search_path={name} -c client_min_messages=warning'"
        finally:
            run("DROP SCHEMA {} CASCADE")

    def start(self) -> None:
        """Start it, and wait until it takes connections.

        Raises:
            PostgresGone: it ended instead; its last words are in the text.
        """
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self._folder)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                user=self._user,
                group=self._group,
            )
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
                raise PostgresGone(f"PostgreSQL does not start: {' '.join(last)}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: ``SIGINT`` ends its sessions first, ``SIGQUIT`` ends it as a crash does. ``start`` begins again."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_PATIENCE)
        finally:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop it and delete everything."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _make(self) -> None:
        if self._user is not None and self._group is not None:
            os.chown(self._folder, self._user, self._group)
        command = [str(self._programs / "initdb"), "-D", str(self._data), "--username=tabhelm", "--auth=trust"]
        command += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        done = _call(command, _PATIENCE, self._folder, self._user, self._group)
        if done.returncode:
            raise PostgresGone(f"initdb failed: {' '.join(done.stderr.strip().splitlines()[-3:])}")

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.conninfo(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def _unprivileged() -> tuple[int | None, int | None]:
    """The user and group to run it as; ``None`` for our own."""
    if os.geteuid() != 0:
        return None, None
    import pwd

    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    raise PostgresGone("PostgreSQL refuses to run as root, and this system has neither a user postgres nor nobody")


def _call(
    command: list[str], patience: float, folder: Path | None = None, user: int | None = None, group: int | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=patience, cwd=folder, user=user, group=group
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PostgresGone(f"{command[0]} does not start ({error}): {_HELP}") from error
