"""Find a Chromium for the tests, or install one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tabhelm_build.bootstrap import fail, say

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium(install: bool = True) -> Path:
    """The Chromium to use: ``TABHELM_CHROMIUM``, Playwright's own, the system's; else one is installed.

    Says which one it is, on standard error, and remembers it for child processes in ``TABHELM_CHROMIUM``.
    """
    chosen = os.environ.get("TABHELM_CHROMIUM")
    if chosen:
        if not Path(chosen).exists():
            fail(f"TABHELM_CHROMIUM names {chosen}, which does not exist")
        return Path(chosen)
    found = _playwright() or _system()
    if found is None and install:
        found = _install()
    if found is None:
        fail("no Chromium was found: install one, or name it in TABHELM_CHROMIUM")
    say(f"Using {found} ({_version(found)})")
    os.environ["TABHELM_CHROMIUM"] = str(found)
    return found


def _playwright() -> Path | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.exists() else None


def _system() -> Path | None:
    for name in NAMES:
        if path := shutil.which(name):
            return Path(path)
    mac = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
    return mac if mac.exists() else None


def _install() -> Path | None:
    say("No Chromium found; trying Playwright's …")
    done = subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], capture_output=True, text=True)
    if done.returncode == 0 and (path := _playwright()):
        return path
    if shutil.which("apt-get") and os.geteuid() == 0:
        say("Playwright's could not be fetched; installing the system's package 'chromium' …")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                last = (done.stdout + done.stderr).strip().splitlines()[-1:]
                fail(f"{' '.join(command)} failed: {' '.join(last)}. Install a Chromium, or set TABHELM_CHROMIUM")
        return _system()
    fail(
        "no Chromium was found and none could be installed. Install one (Debian: apt-get install chromium), "
        "or name one in TABHELM_CHROMIUM"
    )


def _version(path: Path) -> str:
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "version unknown"
    return done.stdout.strip() or "version unknown"
