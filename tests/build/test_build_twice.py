"""A second run does nothing twice, and what the network does not give is told in one line.

What is fetched and made is planted here; that the real one is made once is tested in e2e/test_bundle.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tabhelm_build import bundle
from tabhelm_build.bootstrap import fail
from tabhelm_build.wheels import MICROPIP, micropip_wheel


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with what it holds and when it was written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def no_network(*_: Any, **__: Any) -> Any:
    fail("the network is not there")


# -- npm ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a lock; npm makes what it names."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "package-lock.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(bundle, "WEB", folder)
    monkeypatch.setattr(bundle, "run_npm", npm)
    return folder


def npm(arguments: list[str], *, cwd: Path, what: str) -> str:
    made = cwd / "node_modules"
    made.mkdir(exist_ok=True)
    (made / ".stamp").unlink(missing_ok=True)  # npm ci begins by emptying the folder
    (made / "pyodide.mjs").write_text((cwd / "package-lock.json").read_text(encoding="utf-8"), encoding="utf-8")
    return ""


def test_node_modules_are_fetched_once(web: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.ensure_node_modules()
    before = contents(web)
    monkeypatch.setattr(bundle, "run_npm", no_network)
    bundle.ensure_node_modules()
    assert contents(web) == before


def test_another_lock_is_fetched_anew_and_nothing_is_stamped_that_failed(
    web: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.ensure_node_modules()
    (web / "package-lock.json").write_text('{"another": true}', encoding="utf-8")
    monkeypatch.setattr(bundle, "run_npm", no_network)
    for _ in range(2):
        with pytest.raises(SystemExit, match="the network is not there"):
            bundle.ensure_node_modules()
    monkeypatch.setattr(bundle, "run_npm", npm)
    bundle.ensure_node_modules()
    assert (web / "node_modules" / "pyodide.mjs").read_text(encoding="utf-8") == '{"another": true}'


# -- the bundle --------------------------------------------------------------------------------------------------------


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, tuple[bytes, int]]]:
    """Builds into a folder of the test and gives what is there then."""
    out = tmp_path / "dist"
    source = tmp_path / "source.py"
    source.write_text("1", encoding="utf-8")
    monkeypatch.setattr(bundle, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(bundle, "_inputs", lambda: [source])
    monkeypatch.setattr(bundle, "ensure_node_modules", lambda: None)
    for name in ("micropip_wheel", "own_wheel", "_snapshot"):
        monkeypatch.setattr(bundle, name, lambda *_: tmp_path)

    def assemble(draft: Path, tag: str, *_: Path) -> str:
        draft.mkdir(parents=True)
        (draft / "engine.mjs").write_text(f"{tag} {source.read_text(encoding='utf-8')}", encoding="utf-8")
        size = (draft / "engine.mjs").stat().st_size
        (draft / "manifest.json").write_text(json.dumps({"files": {"engine.mjs": {"size": size}}}), encoding="utf-8")
        return "build"

    monkeypatch.setattr(bundle, "_assemble", assemble)

    def run(tag: str = "") -> dict[str, tuple[bytes, int]]:
        bundle.build_bundle(out, tag=tag)
        return contents(out)

    return run


def test_a_bundle_is_made_once(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = build()
    monkeypatch.setattr(bundle, "ensure_node_modules", no_network)
    assert build() == first
    assert capsys.readouterr().err.splitlines()[-1] == "dist/ is up to date"


def test_it_is_made_again_when_a_source_or_its_tag_changes_or_a_file_is_gone(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    first = build()
    tagged = build("second")
    assert tagged["engine.mjs"][0] == b"second 1" != first["engine.mjs"][0]
    (tmp_path / "source.py").write_text("2", encoding="utf-8")
    assert build("second")["engine.mjs"][0] == b"second 2"
    (tmp_path / "dist" / "engine.mjs").unlink()
    assert build("second")["engine.mjs"][0] == b"second 2"


# -- the wheel that npm does not have ----------------------------------------------------------------------------------


def test_micropip_that_cannot_be_fetched_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(SystemExit, match="micropip could not be fetched. Is the network there.*micropip==") as ended:
        micropip_wheel(tmp_path / "wheels")
    assert str(ended.value).startswith("build.py: ") and "\n" not in str(ended.value)
    assert not (tmp_path / "wheels" / MICROPIP).exists()
