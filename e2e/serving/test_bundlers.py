"""An app made by Vite and by esbuild: the client is bundled with it, the engine and Pyodide stay outside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm_build.bootstrap import alone
from tabhelm_build.bundle import CACHE, WEB, digest
from tabhelm_build.node import run_node, run_npm

from .pages import try_join, works
from .site import OddSite

APP = Path(__file__).with_name("bundlers")
ESBUILD = WEB / "node_modules" / "esbuild" / "bin" / "esbuild"


def tools() -> Path:
    """The folder of npm's packages that ``bundlers/package-lock.json`` names, fetched once for each lock."""
    folder = CACHE / "bundlers" / digest([(APP / "package-lock.json").read_bytes()])[:16]
    with alone(CACHE, "bundlers"):
        if not (folder / "whole").exists():
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copyfile(APP / name, folder / name)
            run_npm(
                ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"], cwd=folder, what="npm ci"
            )
            (folder / "whole").touch()
    return folder / "node_modules"


def app_of(bundler: str, bundle: Path, place: Path) -> Path:
    """Build the app in ``place``; returns the folder to serve as ``/app``."""
    for name in ("main.js", "index.html", "package.json"):
        shutil.copyfile(APP / name, place / name)
    shutil.copytree(bundle, place / "node_modules" / "tabhelm")  # as npm would put it there
    out = place / "out"
    if bundler == "vite":
        arguments = [str(tools() / "vite" / "bin" / "vite.js"), "build", "--base=/app/", "--outDir=out"]
    else:
        arguments = [str(ESBUILD), "main.js", "--bundle", "--minify", "--format=esm", "--outfile=out/main.js"]
    run_node(arguments, cwd=place, what=f"building the app with {bundler}")
    if bundler == "esbuild":
        page = (APP / "index.html").read_text(encoding="utf-8").replace("/main.js", "/app/main.js")
        (out / "index.html").write_text(page, encoding="utf-8")
    return out


async def outcome(tab: ChaosTab) -> dict[str, str]:
    result: dict[str, str] = await tab.until("() => window.outcome", what="the app to have joined, or not")
    return result


@pytest.mark.parametrize("bundler", ["vite", "esbuild"])
async def test_a_bundled_app_joins_leads_and_flushes(
    browser: ChaosBrowser, odd: OddSite, bundle: Path, tmp_path: Path, bundler: str
) -> None:
    out = app_of(bundler, bundle, tmp_path)
    odd.does.folders["app"] = out
    scripts = [path for path in out.rglob("*") if path.suffix in (".js", ".mjs")]
    sizes = ", ".join(f"{path.relative_to(out)} {path.stat().st_size}" for path in sorted(scripts))
    print(f"\n{bundler}: {sizes} bytes")
    assert sum(path.stat().st_size for path in scripts) < 100_000, "no runtime was bundled"
    assert not list(out.rglob("*.wasm"))

    tab = await browser.new_tab(f"{odd.url}/app/index.html?engine=/tabhelm/engine.mjs")
    assert await outcome(tab) == {"host": "shared", "from": "snapshot"}
    await works(tab)
    plain = await browser.new_tab(f"{odd.url}/blank")
    assert (await try_join(plain, app="bundled"))["host"] == "shared"
    await plain.until("() => tab.presence().tabs.length === 2", what="bundled and plain tabs to be in one roster")
    ids = [await each.evaluate("() => tab.engine.id") for each in (tab, plain)]
    assert ids[0] == ids[1], "one engine serves both: it is the same build at the same address"

    window = await browser.new_tab(f"{odd.url}/blank")
    await window.navigate(f"{odd.url}/app/index.html")  # without engineUrl: beside the app's own script
    told = await outcome(window)
    assert told["code"] == "no-engine" and f"{odd.url}/app/" in told["message"], told
    assert "404" in told["message"] or "Failed to fetch" in told["message"], told
