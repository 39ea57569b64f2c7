"""How ``build.py`` starts, chooses and fails."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tabhelm_build import browsers
from tabhelm_build.bootstrap import enter_environment, python_of, up_to_date
from tabhelm_build.browsers import find_chromium, find_engines, first_that_runs
from tabhelm_build.bundle import ROOT
from tabhelm_build.checks import selections
from tabhelm_build.cli import main
from tabhelm_build.node import run_node


def program(path: Path, shell: str) -> Path:
    path.write_text(f"#!/bin/sh\n{shell}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# -- the environment ---------------------------------------------------------------------------------------------------


def test_an_environment_is_up_to_date_with_one_lock_and_a_python_that_is_there(tmp_path: Path) -> None:
    assert not up_to_date(tmp_path, b"lock")
    python = python_of(tmp_path)
    python.parent.mkdir()
    python.write_bytes(b"")
    assert not up_to_date(tmp_path, b"lock")
    (tmp_path / "tabhelm.stamp").write_text("5" * 64, encoding="utf-8")
    assert not up_to_date(tmp_path, b"lock")


def test_an_environment_whose_python_was_removed_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "tabhelm.stamp").write_text(hashlib.sha256(b"lock").hexdigest(), encoding="utf-8")
    python = python_of(tmp_path)
    python.parent.mkdir()
    python.symlink_to(tmp_path / "gone")
    assert not up_to_date(tmp_path, b"lock")
    (tmp_path / "gone").write_bytes(b"")
    assert up_to_date(tmp_path, b"lock")


def test_a_failed_installation_is_one_line_and_leaves_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "pip-of-no-network", 'echo "some talk" >&2; echo "ERROR: no route to host" >&2; exit 1')
    python = python_of(tmp_path / ".venv")
    python.parent.mkdir(parents=True)
    python.symlink_to(tmp_path / "pip-of-no-network")
    with pytest.raises(SystemExit, match="Is the network there.*no route to host") as ended:
        enter_environment(tmp_path)
    assert "\n" not in str(ended.value)
    assert not (tmp_path / ".venv" / "tabhelm.stamp").exists()


def test_build_py_starts_with_the_standard_library_alone() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'py_src')!r}); import tabhelm_build.bootstrap"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_an_old_python_is_told_in_one_line() -> None:
    code = f"import sys; sys.version_info = (3, 10, 1); exec(open({str(ROOT / 'build.py')!r}).read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("build.py: tabhelm needs Python 3.11 or newer")
    assert done.stderr.count("\n") == 1


# -- commands ----------------------------------------------------------------------------------------------------------


def test_what_pytest_is_given() -> None:
    unit = ["tests", "--numprocesses=2", "--dist=worksteal"]
    crashed = ["--reruns=1", "--only-rerun=its renderer crashed or was killed", "-rR"]  # and nothing else
    assert selections("unit", []) == [unit]
    assert [run[-1] for run in selections("thorough", [])[1:]] == ["not alone", "alone"]
    assert selections("all", ["-k", "crash"]) == [
        [*unit, "-k", "crash"],
        ["e2e", *crashed, "--numprocesses=3", "--dist=loadfile", "-m", "not alone and not thorough", "-k", "crash"],
        ["e2e", *crashed, "-m", "alone and not thorough", "-k", "crash"],
    ]
    assert selections("e2e", ["e2e/boot/test_boot.py::test_x", "-q"]) == [["e2e/boot/test_boot.py::test_x", "-q"]]


@pytest.mark.parametrize("arguments", [["--port"], ["demo", "--prot", "1"], ["dance"], []])
def test_a_mistyped_command_says_how_it_is_used(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: build.py" in capsys.readouterr().err


def test_a_failing_tool_ends_with_its_last_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = "console.error('one'); console.error('x'.repeat(9999)); process.exit(3)"
    with pytest.raises(SystemExit, match=r"counting failed \(exit code 3\)"):
        run_node(["-e", script], cwd=tmp_path, what="counting")
    told = capsys.readouterr().err
    assert told.startswith("one\n")
    assert len(told) < 400
    assert run_node(["-p", "process.versions.node"], cwd=tmp_path, what="asking").startswith("24.")


# -- the browser -------------------------------------------------------------------------------------------------------


def test_a_browser_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    lacking = program(tmp_path / "lacking", 'echo "error while loading shared libraries" >&2; exit 127')
    advice = program(tmp_path / "advice", "exit 0")
    real = program(tmp_path / "real", 'echo "Chromium 1.2.3"')
    assert first_that_runs([tmp_path / "none", lacking, advice, real]) == (real, "Chromium 1.2.3")
    assert first_that_runs([lacking]) is None


def test_the_browser_that_the_user_names_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABHELM_CHROMIUM", str(program(tmp_path / "mine", "")))
    assert find_chromium() == tmp_path / "mine"
    monkeypatch.setenv("TABHELM_CHROMIUM", str(tmp_path / "nothing"))
    with pytest.raises(SystemExit, match="TABHELM_CHROMIUM names .*nothing, which does not exist"):
        find_chromium()


def test_the_system_browser_is_found_told_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABHELM_CHROMIUM", "")  # so that the test's end restores whatever was there
    monkeypatch.setattr(browsers, "_playwright", lambda: tmp_path / "not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no Chromium was found: install one"):
        find_chromium(install=False)
    path = program(tmp_path / "chromium", 'echo "Chromium 9"')
    assert find_chromium(install=False) == path
    assert f"Using {path} (Chromium 9)" in capsys.readouterr().err
    assert os.environ["TABHELM_CHROMIUM"] == str(path)


def test_other_engines_may_be_missing_unless_every_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABHELM_CHROMIUM", str(program(tmp_path / "chromium", "")))
    monkeypatch.setenv("TABHELM_FIREFOX", str(program(tmp_path / "firefox", "")))
    monkeypatch.setenv("TABHELM_WEBKIT", str(tmp_path / "nothing"))
    monkeypatch.delenv("TABHELM_REQUIRE_ENGINES", raising=False)
    assert find_engines(install=False) == ["WebKitGTK"]
    said = capsys.readouterr().err
    assert f"Using {tmp_path / 'firefox'}" in said
    assert "The tests of WebKitGTK will be skipped: TABHELM_WEBKIT names" in said
    monkeypatch.setenv("TABHELM_REQUIRE_ENGINES", "1")
    with pytest.raises(SystemExit, match="nothing, which cannot be started .TABHELM_REQUIRE_ENGINES=1"):
        find_engines(install=False)
