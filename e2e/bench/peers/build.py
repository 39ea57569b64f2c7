"""The queue libraries, fetched as ``package-lock.json`` pins them, each made into one script that sets ``peer``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tabhelm_build.bootstrap import say
from tabhelm_build.bundle import CACHE, STAMP, WEB, digest, ensure_node_modules
from tabhelm_build.node import run_node, run_npm

HERE = Path(__file__).parent
NAMES = ("idb", "tanstack", "workbox")


def peer_scripts() -> dict[str, str]:
    """The text of each script, by name. Fetches and makes nothing twice."""
    ensure_node_modules()  # esbuild
    lock = (HERE / "package-lock.json").read_bytes()
    _once(HERE / "node_modules" / STAMP, digest([lock]), _fetch)
    folder = CACHE / "bench-peers"
    sources = [(HERE / f"{name}.mjs").read_bytes() for name in NAMES]
    if _once(folder / STAMP, digest([lock, *sources]), lambda: _bundle(folder)):
        say("The peers are made")
    return {name: (folder / f"{name}.js").read_text(encoding="utf-8") for name in NAMES}


def _fetch() -> None:
    say("Fetching the queue libraries to compare with from npm …")
    run_npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=HERE, what="npm ci (is the network there?)")


def _bundle(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    esbuild = str(WEB / "node_modules" / "esbuild" / "bin" / "esbuild")
    for name in NAMES:
        arguments = [esbuild, f"{name}.mjs", "--bundle", "--minify", "--format=iife", "--global-name=made"]
        arguments += ['--define:process.env.NODE_ENV="production"', "--footer:js=globalThis.peer = made.default;"]
        run_node([*arguments, f"--outfile={folder / f'{name}.js'}"], cwd=HERE, what=f"esbuild {name}")


def _once(stamp: Path, wanted: str, make: Callable[[], None]) -> bool:
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return False
    make()
    stamp.write_text(wanted, encoding="utf-8")
    return True
