"""Make ``dist/``: client, engine, wheel, runtime, memory snapshot, manifest. Nothing is made twice."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2

import tabhelm
from tabhelm_build.bootstrap import alone, say
from tabhelm_build.node import run_node, run_npm
from tabhelm_build.wheels import lock_entry, micropip_wheel, own_wheel

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
CACHE = ROOT / ".build"
DIST = ROOT / "dist"
RUNTIME = WEB / "node_modules" / "pyodide"
RUNTIME_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
BUNDLED = ("tabhelm.mjs", "extras.mjs", "engine.mjs")
"""Made into one file each: a page loads one script, an engine another, and neither can be a mixture of two builds.
What few pages use is a third."""
SOURCES = ("boot.mjs", "desk.mjs", "window.mjs", "explain.mjs", "offline.mjs", "guard.mjs")
"""Served as they are."""
TYPES = ("tabhelm.d.ts", "offline.d.mts", "guard.d.mts")
SERVICE_WORKER = "service-worker.js"
"""One script for ``register()``, ``importScripts()`` and ``import`` alike, with the hash of each file that it keeps."""
KEPT_FILES = "service-worker-files.mjs.j2"
"""Its template: rendered last, when all these files are there."""
NOT_KEPT = ("package.json", ".d.ts", ".d.mts")
"""Ends of the names of files that no page ever asks for."""
SNAPSHOT = "snapshot.bin.gz"
MANIFEST = "manifest.json"
STAMP = ".stamp"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the bundle. ``size`` in bytes; ``integrity`` is its SRI hash."""

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
    out = out.resolve()
    with alone(CACHE, "bundle"):
        parts = (part for path in _inputs() for part in (str(path).encode(), path.read_bytes()))
        stamp = digest([tag.encode(), *parts])
        if _stamped(out / STAMP, stamp) and is_whole(out):
            say(f"{out.name}/ is up to date")
            return out
        began = time.monotonic()
        ensure_node_modules()
        micropip = micropip_wheel(CACHE)
        wheel = own_wheel(ROOT, CACHE / "wheel")
        snapshot = _snapshot(wheel)
        draft = CACHE / f"draft-{out.name}"
        build_id = _assemble(draft, tag, wheel, micropip, snapshot)
        (draft / STAMP).write_text(stamp, encoding="utf-8")
        _replace(out, draft)
        say(f"{out.name}/ made in {time.monotonic() - began:.1f} s: tabhelm {tabhelm.__version__}, build {build_id}")
        return out


def is_whole(out: Path) -> bool:
    """Whether every file that the manifest of a bundle lists is there with its size."""
    try:
        files: dict[str, dict[str, Any]] = json.loads((out / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((out / name).stat().st_size == entry["size"] for name, entry in files.items())
    except (OSError, ValueError, KeyError):
        return False


def ensure_node_modules() -> None:
    """Fetch what ``web/package-lock.json`` names; npm checks every integrity hash."""
    lock = WEB / "package-lock.json"
    stamp = WEB / "node_modules" / STAMP
    wanted = digest([lock.read_bytes()])
    if _stamped(stamp, wanted):
        return
    say("Fetching Pyodide, TypeScript and esbuild from npm (about 15 seconds) …")
    run_npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=WEB, what="npm ci (is the network there?)")
    stamp.write_text(wanted, encoding="utf-8")


def _stamped(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text(encoding="utf-8") == wanted


def _inputs() -> list[Path]:
    found = [path for path in (ROOT / "py_src").rglob("*") if path.suffix in (".py", ".mjs", ".typed", ".lock")]
    found += [path for path in WEB.glob("*") if path.suffix in (".mjs", ".ts", ".json")]
    found += [*(WEB / "templates").glob("*"), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def _snapshot(wheel: Path) -> Path:
    script = Path(__file__).with_name("snapshot.mjs")
    key = digest([wheel.read_bytes(), (WEB / "package-lock.json").read_bytes(), script.read_bytes()])[:16]
    path = CACHE / f"snapshot-{key}.bin.gz"
    if path.exists():
        return path
    say("Making the memory snapshot (about 10 seconds) …")
    draft = path.with_suffix(".draft")
    arguments = [str(script), str(RUNTIME), str(wheel), str(draft)]
    facts = json.loads(run_node(arguments, cwd=WEB, what="making the memory snapshot").splitlines()[-1])
    heap, size = facts["used"] / 2**20, draft.stat().st_size / 2**20
    say(f"  {facts['modules']} modules, heap {heap:.1f} of {facts['limit'] / 2**20:.0f} MiB, {size:.1f} MiB gzipped")
    for old in CACHE.glob("snapshot-*.bin.gz"):
        old.unlink()
    draft.rename(path)
    return path


def _assemble(out: Path, tag: str, wheel: Path, micropip: Path, snapshot: Path) -> str:
    """Put all files into ``out``. Returns the build's id."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "pyodide").mkdir(parents=True)
    for name in RUNTIME_FILES:
        shutil.copyfile(RUNTIME / name, out / "pyodide" / name)
    for path in (wheel, micropip):
        shutil.copyfile(path, out / path.name)
    stage = CACHE / f"stage-{out.name}"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    for path in [*WEB.glob("*.mjs"), *(WEB / name for name in TYPES)]:
        shutil.copyfile(path, stage / path.name)
    upstream = json.loads((RUNTIME / "pyodide-lock.json").read_text(encoding="utf-8"))
    packages = {path.name.split("-")[0]: path for path in (micropip, wheel)}
    beside = {name: lock_entry(path, path.name) for name, path in packages.items()}
    # For whoever loads this runtime without our boot: these two lie one folder up; all others are not in the bundle.
    above = {name: lock_entry(path, f"../{path.name}") for name, path in packages.items()}
    whole = {**upstream, "packages": {**upstream["packages"], **above}}
    (out / "pyodide" / "pyodide-lock.json").write_text(json.dumps(whole, separators=(",", ":")), encoding="utf-8")
    shutil.copyfile(snapshot, out / SNAPSHOT)
    build_id = digest(
        [tag.encode(), *_identity(out), *_identity(stage), *(each.read_bytes() for each in _templates())]
    )[:12]
    runtime = [f"pyodide/{name}" for name in RUNTIME_FILES]
    facts = {
        "version": tabhelm.__version__,
        "build_id": build_id,
        "pyodide_version": json.loads((RUNTIME / "package.json").read_text(encoding="utf-8"))["version"],
        "wheel": wheel.name,
        "micropip": micropip.name,
        "snapshot": SNAPSHOT,
        "files": {name: Entry.of(out / name) for name in (*runtime, wheel.name, SNAPSHOT)},
        "lock": {"info": upstream["info"], "packages": beside},
    }
    rendered = [_render(path.name, stage, facts) for path in _templates() if path.name != KEPT_FILES]
    for name in (*SOURCES, *TYPES, *rendered):
        shutil.copyfile(stage / name, out / name)
    _bundle(stage, out)
    _service_worker(stage, out, facts)
    shutil.rmtree(stage)
    manifest = {
        "version": facts["version"],
        "buildId": build_id,
        "pyodide": facts["pyodide_version"],
        "python": upstream["info"]["python"],
        "files": {name: asdict(Entry.of(out / name)) for name in _names(out)},
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return build_id


def _templates() -> list[Path]:
    return sorted((WEB / "templates").glob("*.j2"))


def _names(out: Path) -> list[str]:
    return sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())


def _identity(out: Path) -> Iterator[bytes]:
    for name in _names(out):
        yield name.encode()
        yield (out / name).read_bytes()


def _render(template: str, out: Path, facts: dict[str, Any]) -> str:
    """Render one template into the folder ``out``; returns the file's name."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB / "templates"), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    name = template.removesuffix(".j2")
    (out / name).write_text(environment.get_template(template).render(facts), encoding="utf-8")
    return name


def _bundle(stage: Path, out: Path) -> None:
    """Client, extras and engine: every kilobyte of the client costs each page."""
    _esbuild(stage, out, *BUNDLED, "--format=esm", "--out-extension:.js=.mjs", "--external:./extras.mjs")
    for name in BUNDLED:
        _terser(out / name, "--module")


def _service_worker(stage: Path, out: Path, facts: dict[str, Any]) -> None:
    """The service worker's script, which has neither imports nor exports."""
    kept = {name: Entry.of(out / name) for name in _names(out) if not name.endswith(NOT_KEPT)}
    _render(KEPT_FILES, stage, {**facts, "kept": kept})
    _esbuild(stage, out, Path(SERVICE_WORKER).with_suffix(".mjs").name, "--format=iife")
    _terser(out / SERVICE_WORKER)


def _esbuild(stage: Path, out: Path, *arguments: str) -> None:
    """esbuild joins the modules and makes them small, terser smaller."""
    options = "--bundle --minify --target=es2023 --charset=utf8".split()
    esbuild = [str(WEB / "node_modules" / "esbuild" / "bin" / "esbuild"), *arguments, *options, f"--outdir={out}"]
    run_node(esbuild, cwd=stage, what=f"bundling {arguments[0]}")


def _terser(script: Path, *arguments: str) -> None:
    options = "--mangle --compress ecma=2022,passes=3,unsafe_arrows=true,keep_fargs=false".split()
    terser = [str(WEB / "node_modules" / "terser" / "bin" / "terser"), str(script), *arguments, *options]
    run_node([*terser, "--output", str(script)], cwd=script.parent, what=f"making {script.name} small")


def _replace(out: Path, draft: Path) -> None:
    """Put the new bundle in the old one's place: a server that is running never sees half of one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    old = CACHE / f"old-{out.name}"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        shutil.move(out, old)
    shutil.move(draft, out)
    shutil.rmtree(old, ignore_errors=True)
