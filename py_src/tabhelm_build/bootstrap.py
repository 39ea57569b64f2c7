"""From plain CPython into ``.venv`` with the locked dependencies. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
    stamp = folder / _STAMP
    wanted = hashlib.sha256(LOCK.read_bytes() + str(root).encode()).hexdigest()
    if not _ready(python, stamp, wanted):
        with alone(root / ".build", "environment"):
            if not _ready(python, stamp, wanted):  # not made meanwhile by the one we waited for
                _make(folder, python, root)
                stamp.write_text(wanted, encoding="utf-8")
    if Path(sys.prefix).resolve() != folder.resolve():
        arguments = [str(python), *sys.argv]
        if os.name == "nt":  # exec there detaches from the console
            raise SystemExit(subprocess.run(arguments).returncode)
        os.execv(python, arguments)


@contextlib.contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Only one ``build.py`` of this repository at a time does this; another one waits. The kernel lets go if we die."""
    try:
        import fcntl
    except ImportError:  # Windows: the user sees to it himself
        yield
        return
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another build.py ({name}) …")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ready(python: Path, stamp: Path, wanted: str) -> bool:
    return python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted


def _make(folder: Path, python: Path, root: Path) -> None:
    if not python.exists():
        say("Making .venv …")
        _make_venv(folder)
    say("Installing the pinned dependencies into .venv (about half a minute) …")
    pip = [str(python), "-m", "pip"]
    if _run([*pip, "--version"]).returncode:  # a .venv made without ensurepip has none
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--require-hashes", "--only-binary=:all:"]
    done = _run([*pip, "install", *options, "-r", str(LOCK)])
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
        fail(f"pip could not install the dependencies. Is the network there? pip says: {' '.join(last)[:600]}")
    asked = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    if asked.returncode:
        fail(".venv is broken: delete it and run build.py again")
    Path(asked.stdout.strip(), "tabhelm-source.pth").write_text(f"{root / 'py_src'}\n", encoding="utf-8")


def _make_venv(folder: Path) -> None:
    """Debian's Python comes without ``ensurepip``; then its own pip serves, or the package that has it is installed."""
    if folder.exists():
        shutil.rmtree(folder)
    has_pip = importlib.util.find_spec("pip") is not None
    if importlib.util.find_spec("ensurepip") is None and not has_pip:
        _install_ensurepip()
    without = [] if importlib.util.find_spec("ensurepip") else ["--without-pip"]
    done = _run([sys.executable, "-m", "venv", *without, str(folder)])
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        fail(f".venv could not be made ({' '.join(last)}): is the folder writable, and does `python3 -m venv` work?")


def _install_ensurepip() -> None:
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    hint = f"this Python has neither ensurepip nor pip. Install {package} (Debian, Ubuntu: apt-get install {package})"
    if shutil.which("apt-get") is None or os.name == "nt" or os.geteuid() != 0:
        fail(hint)
    say(f"This Python has neither ensurepip nor pip: installing {package} …")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", package]):
        if subprocess.run(command, capture_output=True, env=environment).returncode:
            fail(hint)
    importlib.invalidate_caches()


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
