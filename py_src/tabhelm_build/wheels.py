"""The wheels of the bundle: our own, built here, and micropip's, fetched by its hash."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tabhelm_build.bootstrap import fail, last_words, say

MICROPIP = "micropip-0.11.1-py3-none-any.whl"
MICROPIP_SHA256 = "768de165adb8e66906039d8fec4127a57f522dfdf8e6fbff877a4616941ecfd3"


def own_wheel(root: Path, folder: Path) -> Path:
    """Build the project's wheel. The same sources give the same bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        fail("the wheel could not be built; hatchling's words are above")
    return next(folder.glob("*.whl"))


def micropip_wheel(folder: Path) -> Path:
    """The wheel of micropip, which is not among the files that npm has of Pyodide."""
    path = folder / MICROPIP
    if not path.exists():
        say("Fetching the micropip wheel …")
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # micropip runs on Pyodide's Python, not on ours.
        command += ["--python-version", "3.14", "--only-binary=:all:", "-d", str(folder)]
        done = subprocess.run([*command, f"micropip=={MICROPIP.split('-')[1]}"], capture_output=True, text=True)
        if done.returncode:
            fail(f"micropip could not be fetched. Is the network there? pip says: {last_words(done.stderr)}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != MICROPIP_SHA256:
        path.unlink()
        fail(f"{MICROPIP} has the hash {found}, expected {MICROPIP_SHA256}: it was deleted; run again")
    return path


def lock_entry(wheel: Path, file_name: str) -> dict[str, object]:
    """What Pyodide's lock file says about a pure wheel without dependencies. ``file_name``: where it is served."""
    name, version = wheel.name.split("-")[:2]
    return {
        "name": name,
        "version": version,
        "file_name": file_name,
        "install_dir": "site",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "package_type": "package",
        "imports": [name],
        "depends": [],
        "unvendored_tests": False,
    }
