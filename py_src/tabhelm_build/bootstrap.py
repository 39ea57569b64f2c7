"""From plain CPython into ``.venv`` with the locked dependencies. Standard library only."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import NoReturn

LOCK = Path(__file__).resolve().parent / "requirements.lock"
_STAMP = "tabhelm.stamp"


def say(text: str) -> None:
    """Progress goes to standard error: standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    """End with one readable line."""
    raise SystemExit(f"build.py: {text}")


def python_of(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def up_to_date(folder: Path, lock: bytes) -> bool:
    """Whether the virtual environment in ``folder`` starts and has what ``lock`` lists."""
    stamp = folder / _STAMP
    # The interpreter is a link, and may point at a Python that an upgrade of the system has removed.
    return python_of(folder).exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == _wanted(lock)


def enter_environment(root: str | Path) -> None:
    """Make sure that this process runs inside ``.venv`` with the locked dependencies; re-executes itself if not."""
    root = Path(root)
    folder = root / ".venv"
    lock = LOCK.read_bytes()
    if not up_to_date(folder, lock):
        _make(folder, root)
        (folder / _STAMP).write_text(_wanted(lock), encoding="utf-8")
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    command = [str(python_of(folder)), *sys.argv]
    if os.name == "nt":
        raise SystemExit(subprocess.run(command).returncode)
    os.execv(command[0], command)


def _wanted(lock: bytes) -> str:
    return hashlib.sha256(lock).hexdigest()


def _make(folder: Path, root: Path) -> None:
    python = python_of(folder)
    if not python.exists():
        say("Making .venv …")
        try:
            venv.create(folder, with_pip=True, clear=folder.exists())
        except (OSError, subprocess.CalledProcessError) as error:
            fail(f".venv could not be made ({error}). On Debian and Ubuntu: apt-get install python3-venv")
    say("Installing the pinned dependencies into .venv (about half a minute) …")
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    # All of them have wheels; building one from its source would fetch build tools that no lock pins.
    command += ["--only-binary=:all:", "--require-hashes", "-r", str(LOCK)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        fail(f"pip could not install the dependencies. Is the network there? pip says: {_last_words(done.stderr)}")
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    (packages / "tabhelm-source.pth").write_text(f"{root / 'py_src'}\n", encoding="utf-8")


def _last_words(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    return " ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:])[:600]
