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
        with alone(root / ".build", "environment"):
            if not up_to_date(folder, lock):  # else the one that we waited for has made it
                _make(folder, root)
                (folder / _STAMP).write_text(_wanted(lock), encoding="utf-8")
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    command = [str(python_of(folder)), *sys.argv]
    if os.name == "nt":
        raise SystemExit(subprocess.run(command).returncode)
    os.execv(command[0], command)


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


def _wanted(lock: bytes) -> str:
    return hashlib.sha256(lock).hexdigest()


def _make(folder: Path, root: Path) -> None:
    python = python_of(folder)
    if not python.exists():
        say("Making .venv …")
        _make_venv(folder)
    say("Installing the pinned dependencies into .venv (about half a minute) …")
    command = [str(python), "-m", "pip"]
    if _run([*command, "--version"]).returncode:  # a .venv made without ensurepip has none of its own
        command = [sys.executable, "-m", "pip", "--python", str(python)]
    command += ["install", "--quiet", "--disable-pip-version-check", "--no-input"]
    # All of them have wheels; building one from its source would fetch build tools that no lock pins.
    command += ["--only-binary=:all:", "--require-hashes", "-r", str(LOCK)]
    done = _run(command)
    if done.returncode:
        fail(f"pip could not install the dependencies. Is the network there? pip says: {last_words(done.stderr)}")
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(_run(ask).stdout.strip())
    (packages / "tabhelm-source.pth").write_text(f"{root / 'py_src'}\n", encoding="utf-8")


def last_words(stderr: str) -> str:
    """Why pip failed, on one line: its errors, or if it names none, the last line that it wrote."""
    lines = stderr.strip().splitlines()
    return " ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:])[:600]


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
