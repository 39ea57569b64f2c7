"""From plain CPython into ``.venv`` with the locked dependencies. Standard library only."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
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


def enter_environment(root: Path) -> None:
    """Make sure that this process runs inside ``.venv`` with the locked dependencies; re-executes itself if not."""
    folder = root / ".venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()
    inside = Path(sys.prefix).resolve() == folder.resolve()
    stamp = folder / _STAMP
    if inside and stamp.exists():
        return
    if not stamp.exists() or stamp.read_text() != wanted:
        _make(folder, python, root)
        stamp.write_text(wanted)
    if not inside:
        arguments = [str(python), *sys.argv]
        if os.name == "nt":
            raise SystemExit(subprocess.run(arguments).returncode)
        os.execv(python, arguments)


def _make(folder: Path, python: Path, root: Path) -> None:
    if not python.exists():
        say("Making .venv …")
        try:
            venv.create(folder, with_pip=True, clear=folder.exists())
        except (OSError, subprocess.CalledProcessError) as error:
            fail(f".venv could not be made ({error}). On Debian and Ubuntu: apt-get install python3-venv")
    say("Installing the pinned dependencies into .venv (about half a minute) …")
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run([*command, "--require-hashes", "-r", str(LOCK)], capture_output=True, text=True)
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
        fail(f"pip could not install the dependencies. Is the network there? pip says: {' '.join(last)[:600]}")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (packages / "tabhelm-source.pth").write_text(str(root / "py_src") + "\n")
