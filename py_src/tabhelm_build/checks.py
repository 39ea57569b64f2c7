"""The tests: style, types, unit tests; then the browser's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tabhelm_build.bootstrap import say
from tabhelm_build.browsers import find_engines
from tabhelm_build.bundle import ROOT, WEB, build_bundle, ensure_node_modules
from tabhelm_build.node import run_node
from tabhelm_build.postgres import find_postgres

_NO_TESTS_RAN = 5
"""What pytest exits with when a selection matches nothing."""
_UNIT = ["tests", "--numprocesses=2", "--dist=worksteal"]
# Chromium's renderer crashes by itself now and then, about once in a thousand tests, while it runs WebAssembly. Only
# that is tried once more, and told in the summary; no other failure is.
_CRASHED = ["--reruns=1", "--only-rerun=its renderer crashed or was killed", "-rR"]
# Real tabs mostly wait; a file stays in one process, because its tests share a browser or a booted interpreter.
_E2E = ["e2e", *_CRASHED, "--numprocesses=3", "--dist=loadfile", "-m", "not alone and not thorough"]
_THOROUGH = [*_E2E[:-1], "not alone"]
_ALONE = ["e2e", *_CRASHED, "-m", "alone and not thorough"]


def test(which: str, pytest_arguments: Sequence[str]) -> int:
    """Run the tests; the exit code is that of the first part that failed.

    ``which``: ``unit``, ``e2e``, ``all``, or ``thorough``: all, in every setting. Paths among
    ``pytest_arguments`` take the place of the whole folder.
    """
    if which != "e2e" and (code := _static_checks()):
        return code
    if which != "unit":
        build_bundle()
        build_bundle(ROOT / "dist-second", tag="second")
        find_engines()
    find_postgres()
    code = _NO_TESTS_RAN
    for selection in selections(which, pytest_arguments):
        say(f"pytest {' '.join(selection)}")
        done = _run([sys.executable, "-m", "pytest", *selection])
        if done not in (0, _NO_TESTS_RAN):
            return done
        code = min(code, done)  # -k may match in one half alone
    return code


def selections(which: str, arguments: Sequence[str]) -> list[list[str]]:
    """The argument lists of the runs of pytest, the quick one first.

    Whole folders run in several processes; then, alone, the tests that measure.
    """
    if any(text.startswith(("tests/", "e2e/")) for text in arguments):
        return [list(arguments)]
    runs = {
        "unit": [_UNIT],
        "e2e": [_E2E, _ALONE],
        "all": [_UNIT, _E2E, _ALONE],
        "thorough": [_UNIT, _THOROUGH, [*_ALONE[:-1], "alone"]],
    }[which]
    return [[*run, *arguments] for run in runs]


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
