"""Find the browsers for the tests, or install them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tabhelm_build.bootstrap import fail, say

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_HELP = "install one (Debian: apt-get install chromium), or name one in TABHELM_CHROMIUM"


@dataclass(frozen=True, slots=True)
class _Other:
    """An engine that the tests can do without. ``find`` raises ``BrowserGone`` with the way out."""

    name: str
    find: Callable[[], str]
    packages: tuple[str, ...]


def find_engines(install: bool = True) -> list[str]:
    """Chromium, and Firefox and WebKitGTK as well if they are there or can be installed (as root by apt-get).

    Says which, on standard error; returns the names of those that are missing. ``TABHELM_FIREFOX`` and
    ``TABHELM_WEBKIT`` name others than the first on the path. With ``TABHELM_REQUIRE_ENGINES=1`` a missing one is an
    error.
    """
    find_chromium(install)
    missing = [engine for engine in _others() if _why_not(engine)]
    if missing and install and shutil.which("apt-get") and os.geteuid() == 0:
        packages = [package for engine in missing for package in engine.packages]
        say(f"Installing the system's packages {' '.join(packages)} …")
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
            if (done := _run(command)).returncode:
                say(f"{' '.join(command)} failed: {' '.join((done.stdout + done.stderr).strip().splitlines()[-1:])}")
    lacking = []
    for engine in _others():
        if why := _why_not(engine):
            lacking.append(engine.name)
            if os.environ.get("TABHELM_REQUIRE_ENGINES") == "1":
                fail(f"{why} (TABHELM_REQUIRE_ENGINES=1 asks for every engine)")
            say(f"The tests of {engine.name} will be skipped: {why}")
        else:
            say(f"Using {engine.find()}")
    return lacking


def _others() -> list[_Other]:
    from tabhelm.testing.firefox import find_firefox
    from tabhelm.testing.webkit import find_webkit

    return [
        _Other("Firefox", find_firefox, ("firefox-esr",)),
        _Other("WebKitGTK", lambda: find_webkit()[0], ("webkit2gtk-driver", "xvfb")),
    ]


def _why_not(engine: _Other) -> str:
    from tabhelm.testing.errors import BrowserGone

    try:
        engine.find()
    except BrowserGone as error:
        return str(error)
    return ""


def find_chromium(install: bool = True) -> Path:
    """The Chromium to use: ``TABHELM_CHROMIUM``, Playwright's own, the system's; else one is installed.

    Says which one it is, on standard error, and remembers it for child processes in ``TABHELM_CHROMIUM``.
    """
    chosen = os.environ.get("TABHELM_CHROMIUM")
    if chosen:
        if not Path(chosen).is_file():
            fail(f"TABHELM_CHROMIUM names {chosen}, which does not exist")
        return Path(chosen)
    found = first_that_runs([_playwright(), *_system()])
    if found is None and install:
        found = _install()
    if found is None:
        fail(f"no Chromium was found: {_HELP}")
    path, version = found
    say(f"Using {path} ({version})")
    os.environ["TABHELM_CHROMIUM"] = str(path)
    return path


def first_that_runs(candidates: Iterable[Path]) -> tuple[Path, str] | None:
    """The first of ``candidates`` that can be started, and its version.

    One that is there may not start: Playwright's downloads come without the libraries that they need, and on some
    systems ``chromium-browser`` is a script that says how to get another package.
    """
    for path in candidates:
        if path.is_file() and (version := _version(path)):
            return path, version
    return None


def _playwright() -> Path:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path)


def _system() -> list[Path]:
    found = [Path(path) for name in NAMES if (path := shutil.which(name))]
    return [*found, Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")]


def _install() -> tuple[Path, str] | None:
    say("No Chromium found; trying Playwright's …")
    done = _run([sys.executable, "-m", "playwright", "install", "chromium"])
    if done.returncode == 0 and (found := first_that_runs([_playwright()])):
        return found
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        fail(f"no Chromium was found and none could be installed: {_HELP}")
    say("Playwright's cannot be had or does not start here; installing the system's package 'chromium' …")
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
        done = _run(command)
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            fail(f"{' '.join(command)} failed: {' '.join(last)}. Without it: {_HELP}")
    return first_that_runs(_system())


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def _version(path: Path) -> str:
    """What the browser says of itself; empty if it does not start."""
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
