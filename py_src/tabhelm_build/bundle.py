"""Make ``dist/``: client, engine, wheel, runtime, memory snapshot, manifest. Nothing is made twice."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

import tabhelm
from tabhelm_build.bootstrap import fail, say
from tabhelm_build.node import run_node, run_npm

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
CACHE = ROOT / ".build"
DIST = ROOT / "dist"
RUNTIME_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
MICROPIP = "micropip-0.11.1-py3-none-any.whl"
MICROPIP_SHA256 = "768de165adb8e66906039d8fec4127a57f522dfdf8e6fbff877a4616941ecfd3"
ENGINE_MODULES = ("engine.mjs", "boot.mjs", "desk.mjs")
STAMP = ".stamp"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the bundle. ``integrity`` is its SRI hash."""

    size: int
    integrity: str

    @classmethod
    def of(cls, path: Path) -> Entry:
        content = path.read_bytes()
        digest = base64.b64encode(hashlib.sha384(content).digest()).decode()
        return cls(len(content), f"sha384-{digest}")


def digest(parts: Iterable[bytes]) -> str:
    """One hash over several byte strings, each with its length."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "big"))
        sha.update(part)
    return sha.hexdigest()


def build_bundle(out: Path = DIST, *, tag: str = "") -> Path:
    """Make the bundle in ``out``. ``tag`` makes a different build of the same sources (tests of two builds at once)."""
    stamp = digest([tag.encode(), *(item for path in _inputs() for item in (str(path).encode(), path.read_bytes()))])
    if (out / STAMP).exists() and (out / STAMP).read_text() == stamp:
        say(f"{out.name}/ is up to date")
        return out
    began = time.monotonic()
    _ensure_node_modules()
    micropip = _micropip()
    wheel = _build_wheel()
    snapshot = _snapshot(wheel)
    _assemble(out, tag, wheel, micropip, snapshot)
    (out / STAMP).write_text(stamp)
    say(f"{out.name}/ made in {time.monotonic() - began:.1f} s")
    return out


def _inputs() -> list[Path]:
    found = [path for path in (ROOT / "py_src").rglob("*") if path.suffix in (".py", ".mjs", ".typed", ".lock")]
    found += [path for path in WEB.glob("*") if path.suffix in (".mjs", ".ts", ".json")]
    found += [*(WEB / "templates").glob("*"), ROOT / "pyproject.toml"]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def _ensure_node_modules() -> None:
    lock = WEB / "package-lock.json"
    stamp = WEB / "node_modules" / STAMP
    wanted = digest([lock.read_bytes()])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say("Fetching Pyodide, TypeScript and esbuild from npm …")
    run_npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=WEB, what="npm ci (is the network there?)")
    stamp.write_text(wanted)


def _micropip() -> Path:
    path = CACHE / MICROPIP
    if not path.exists():
        say("Fetching the micropip wheel …")
        CACHE.mkdir(exist_ok=True)
        version = MICROPIP.split("-")[1]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # micropip runs on Pyodide's Python, not on ours.
        command += ["--python-version", "3.14", "--only-binary=:all:", "-d", str(CACHE), f"micropip=={version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            fail(f"micropip could not be fetched. Is the network there? pip says: {' '.join(last)}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != MICROPIP_SHA256:
        path.unlink()
        fail(f"{MICROPIP} has the hash {found}, expected {MICROPIP_SHA256}: it was deleted; run again")
    return path


def _build_wheel() -> Path:
    folder = CACHE / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}  # the same sources give the same bytes
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        fail("the wheel could not be built; hatchling's words are above")
    return next(folder.glob("*.whl"))


def _snapshot(wheel: Path) -> Path:
    runtime = WEB / "node_modules" / "pyodide"
    script = Path(__file__).with_name("snapshot.mjs")
    key = digest([wheel.read_bytes(), (WEB / "package-lock.json").read_bytes(), script.read_bytes()])[:16]
    path = CACHE / f"snapshot-{key}.bin.gz"
    if path.exists():
        return path
    say("Making the memory snapshot (about 10 seconds) …")
    for old in CACHE.glob("snapshot-*.bin.gz"):
        old.unlink()
    draft = path.with_suffix(".draft")
    arguments = [str(script), str(runtime), str(wheel), str(draft)]
    facts = json.loads(run_node(arguments, cwd=WEB, what="making the memory snapshot").splitlines()[-1])
    say(f"  {facts['modules']} modules, {facts['bytes'] / 2**20:.1f} MiB, {draft.stat().st_size / 2**20:.1f} MiB gzipped")
    draft.rename(path)
    return path


def _assemble(out: Path, tag: str, wheel: Path, micropip: Path, snapshot: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    (out / "pyodide").mkdir(parents=True)
    for name in RUNTIME_FILES:
        shutil.copyfile(WEB / "node_modules" / "pyodide" / name, out / "pyodide" / name)
    for path in (wheel, micropip):
        shutil.copyfile(path, out / path.name)
    shutil.copyfile(snapshot, out / "snapshot.bin.gz")
    for name in (*ENGINE_MODULES, "tabhelm.d.ts"):
        shutil.copyfile(WEB / name, out / name)
    _bundle_client(out)
    entries = {str(path.relative_to(out).as_posix()): Entry.of(path) for path in sorted(out.rglob("*")) if path.is_file()}
    build_id = digest([tag.encode(), *(f"{name}{entry.integrity}".encode() for name, entry in entries.items())])[:12]
    facts = _facts(build_id, wheel, micropip)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB / "templates"), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    rendered = environment.get_template("build-info.mjs.j2").render(files=entries, **facts)
    (out / "build-info.mjs").write_text(rendered)
    entries["build-info.mjs"] = Entry.of(out / "build-info.mjs")
    manifest = {
        "version": facts["version"],
        "buildId": build_id,
        "pyodide": facts["lock"]["version"],
        "python": facts["lock"]["python"],
        "files": {name: {"size": entry.size, "integrity": entry.integrity} for name, entry in sorted(entries.items())},
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _bundle_client(out: Path) -> None:
    esbuild = WEB / "node_modules" / "esbuild" / "bin" / "esbuild"
    options = ["--bundle", "--minify", "--format=esm", "--target=es2023", "--external:./build-info.mjs", "--charset=utf8"]
    arguments = [str(esbuild), "tabhelm.mjs", *options, f"--outfile={out / 'tabhelm.mjs'}"]
    run_node(arguments, cwd=WEB, what="bundling the client")


def _facts(build_id: str, wheel: Path, micropip: Path) -> dict[str, Any]:
    lock = json.loads((WEB / "node_modules" / "pyodide" / "pyodide-lock.json").read_text())["info"]
    package = json.loads((WEB / "node_modules" / "pyodide" / "package.json").read_text())
    return {
        "version": tabhelm.__version__,
        "build_id": build_id,
        "lock": {**lock, "version": package["version"]},
        "wheel": wheel.name,
        "micropip": micropip.name,
    }
