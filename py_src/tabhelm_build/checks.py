"""The tests: style, types, unit tests; then the browser's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tabhelm_build.bootstrap import say
from tabhelm_build.browsers import find_chromium
from tabhelm_build.bundle import ROOT, WEB, build_bundle, ensure_node_modules
from tabhelm_build.node import run_node


def test(which: str, pytest_arguments: Sequence[str]) -> int:
    """Run the tests; the exit code is that of the first part that failed."""
    folders: list[str] = []
    if which in ("unit", "all"):
        if code := _static_checks():
            return code
        folders.append("tests")
    if which in ("e2e", "all"):
        build_bundle()
        build_bundle(ROOT / "dist-second", tag="second")
        find_chromium()
        folders.append("e2e")
    code = 0
    for folder in folders:
        say(f"pytest {folder}")
        code = code or _run([sys.executable, "-m", "pytest", folder, *pytest_arguments])
    return code


def _static_checks() -> int:
    ensure_node_modules()
    steps = (
        ("ruff check", [sys.executable, "-m", "ruff", "check", "."]),
        ("ruff format --check", [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "."]),
        ("mypy --strict", [sys.executable, "-m", "mypy"]),
    )
    for name, command in steps:
        began = time.monotonic()
        if code := _run(command):
            say(f"{name} failed")
            return code
        say(f"{name}: fine ({time.monotonic() - began:.1f} s)")
    compiler = Path("node_modules") / "typescript" / "bin" / "tsc"
    run_node([str(WEB / compiler), "--project", "tsconfig.json"], cwd=WEB, what="tsc: the client against tabhelm.d.ts")
    say("tsc: fine")
    return 0


def _run(command: Sequence[str]) -> int:
    return subprocess.run(command, cwd=ROOT).returncode
