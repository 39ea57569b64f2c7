"""What the build makes and reads: hashes, manifest, wheels, the lock."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tabhelm_build import wheels
from tabhelm_build.bootstrap import LOCK
from tabhelm_build.bundle import MANIFEST, ROOT, Entry, digest, is_whole
from tabhelm_build.wheels import MICROPIP, lock_entry, micropip_wheel, own_wheel


def test_an_entry_has_the_hash_that_browsers_compare(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"alert('Hello, world.');")
    # The example of the SRI specification.
    known = "sha384-H8BRh8j48O9oYatfu5AZzq6A9RINhZO5H16dQZngK7T62em8MUt1FLm52t+eX6xO"
    assert Entry.of(tmp_path / "a") == Entry(23, known)


def test_a_digest_tells_where_one_part_ends() -> None:
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
    assert digest([b"ab", b"c"]) == digest(iter([b"ab", b"c"]))


def test_a_bundle_is_whole_while_every_file_has_its_size(tmp_path: Path) -> None:
    assert not is_whole(tmp_path / "nowhere")
    (tmp_path / "engine.mjs").write_bytes(b"1234")
    manifest = tmp_path / MANIFEST
    manifest.write_text(json.dumps({"files": {"engine.mjs": {"size": 4}}}), encoding="utf-8")
    assert is_whole(tmp_path)
    (tmp_path / "engine.mjs").write_bytes(b"123")
    assert not is_whole(tmp_path)
    (tmp_path / "engine.mjs").unlink()
    assert not is_whole(tmp_path)
    manifest.write_text('{"files"', encoding="utf-8")
    assert not is_whole(tmp_path)


def test_our_wheel_has_the_page_side_alone_and_is_reproducible(tmp_path: Path) -> None:
    first, second = (own_wheel(ROOT, tmp_path / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tabhelm"}
    assert "tabhelm/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_lock_entry_says_what_pyodide_checks(tmp_path: Path) -> None:
    wheel = tmp_path / "thing-1.2-py3-none-any.whl"
    wheel.write_bytes(b"content")
    entry = lock_entry(wheel, f"../{wheel.name}")
    assert (entry["name"], entry["version"], entry["file_name"]) == ("thing", "1.2", "../thing-1.2-py3-none-any.whl")
    assert entry["sha256"] == hashlib.sha256(b"content").hexdigest()


def test_a_micropip_wheel_of_another_hash_is_refused_and_removed(tmp_path: Path) -> None:
    planted = tmp_path / MICROPIP
    planted.write_bytes(b"not the wheel")
    with pytest.raises(SystemExit, match=f"expected {wheels.MICROPIP_SHA256}"):
        micropip_wheel(tmp_path)
    assert not planted.exists()


def test_the_lock_has_what_the_project_pins_each_with_a_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {name for extra in project["optional-dependencies"].values() for name in extra}
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK.read_text(encoding="utf-8"))
    locked = {re.split(r"[ \\]", block, maxsplit=1)[0]: block for block in blocks if re.match(r"[a-z0-9]", block)}
    assert wanted <= set(locked)
    assert [name for name, block in locked.items() if "--hash=sha256:" not in block] == []


def test_no_lock_names_a_registry() -> None:
    packages = json.loads((ROOT / "web" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    fetched = {name: entry for name, entry in packages.items() if name}
    assert [name for name, entry in fetched.items() if "resolved" in entry] == []
    assert [name for name, entry in fetched.items() if not entry["integrity"].startswith("sha512-")] == []
    assert "://" not in LOCK.read_text(encoding="utf-8")


def test_npm_integrity_hashes_are_whole() -> None:
    packages = json.loads((ROOT / "web" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    lengths = {len(base64.b64decode(e["integrity"].partition("-")[2])) for name, e in packages.items() if name}
    assert lengths == {64}


def test_what_goes_into_the_snapshot_imports_without_a_browser() -> None:
    """A module that keeps a JavaScript object would break the restore, or the making of the snapshot."""
    code = (
        "import importlib, sys\n"
        "from tabhelm.browser import snapshot_modules\n"
        "names = snapshot_modules()\n"
        "for name in names: importlib.import_module(name)\n"
        "print(*[n for n in sys.modules if n.partition('.')[0] in ('js', 'pyodide', 'pyodide_js', 'tabhelm')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert {name.partition(".")[0] for name in modules} == {"tabhelm"}
    assert {"tabhelm.browser.engine", "tabhelm.host.engine", "tabhelm.queue.queue"} <= set(modules)
    assert not any(name.startswith(("tabhelm.testing", "tabhelm.server", "tabhelm.simulated")) for name in modules)
