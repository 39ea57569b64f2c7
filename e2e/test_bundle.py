"""The bundle as built: what it weighs, that its manifest is true, and that it is not made twice."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 10 * 1024
"""Ten kilobytes, of 1024 bytes as everything else about files is counted; the window host took the last of them."""
UNLISTED = {"manifest.json", ".stamp"}


@pytest.mark.parametrize("name", ["tabhelm.mjs", "extras.mjs"])
def test_what_a_page_loads_stays_under_ten_kilobytes(
    bundle: Path, report_figure: Callable[[object], None], name: str
) -> None:
    """Every kilobyte of the client costs each page; the extras cost those that use them."""
    size = len(gzip.compress((bundle / name).read_bytes(), 9))
    report_figure(f"{name}: {size:,} bytes gzipped (limit {LIMIT:,})")
    assert size <= LIMIT


def test_the_manifest_tells_every_file_with_its_size_and_hash(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    there = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert manifest["files"].keys() == there - UNLISTED
    for name, entry in manifest["files"].items():
        content = (bundle / name).read_bytes()
        assert entry["size"] == len(content), name
        integrity = "sha384-" + base64.b64encode(hashlib.sha384(content).digest()).decode()
        assert entry["integrity"] == integrity, name
    assert {"tabhelm.mjs", "extras.mjs", "engine.mjs", "snapshot.bin.gz", "tabhelm.d.ts"} <= there


def test_its_versions_are_those_of_its_files(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    assert (bundle / f"tabhelm-{manifest['version']}-py3-none-any.whl").is_file()
    assert json.loads((bundle / "pyodide" / "pyodide-lock.json").read_text())["info"]["python"] == manifest["python"]
    assert re.fullmatch(r"[0-9a-f]{12}", manifest["buildId"])
    assert manifest["buildId"] in (bundle / "tabhelm.mjs").read_text(encoding="utf-8")
    engine = (bundle / "engine.mjs").read_text(encoding="utf-8")
    booted = [name for name in manifest["files"] if name.endswith((".whl", ".wasm", ".zip", ".bin.gz"))]
    named = {name for name in booted if manifest["files"][name]["integrity"] in engine}
    assert {name for name in booted if not name.startswith("micropip")} == named, "the engine checks what it boots"
    assert manifest["pyodide"] in (bundle / "pyodide" / "pyodide.mjs").read_text(encoding="utf-8")


async def test_a_second_build_makes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "bundle"

    async def build() -> str:
        command = [sys.executable, str(ROOT / "build.py"), "bundle", "--out", str(out)]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
        _, told = await process.communicate()
        assert process.returncode == 0, told.decode()
        return told.decode().splitlines()[-1]

    def files() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in out.rglob("*")}

    assert (await build()).startswith("bundle/ made in ")
    before = files()
    assert await build() == "bundle/ is up to date"
    assert files() == before
