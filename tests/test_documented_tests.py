"""docs/testing.md names the test of each promise: all of them exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`((?:tests|e2e)/[\w/]+\.py)::(\w+)`")
TEXT = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
FILES = sorted({file for file, _ in NAMED.findall(TEXT)})


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("file", FILES)
def test_every_test_that_the_documentation_names_exists(file: str) -> None:
    assert (ROOT / file).is_file()
    named = {test for each, test in NAMED.findall(TEXT) if each == file}
    assert named - functions(ROOT / file) == set()


def test_every_row_names_a_test_for_each_side_or_says_why_not() -> None:
    rows = [line for line in TEXT.partition("## Figures")[0].splitlines() if line.startswith("| ")]
    bare = []
    for row in rows:
        *_, simulated, real = [cell.strip() for cell in row.strip("|").split(" | ")]
        if "simulated" in simulated:
            continue  # a heading
        bare += [row[:80] for cell in (simulated, real) if not NAMED.search(cell) and not cell.startswith("none")]
    assert len(rows) > 50
    assert bare == []


def test_nothing_listens_for_unload() -> None:
    """Such a listener keeps a page out of the back/forward cache."""
    scripts = [file for file in (ROOT / "web").glob("*.mjs")]
    listening = [
        file.name for file in scripts if re.search(r"""["'`](?:before)?unload["'`]""", file.read_text("utf-8"))
    ]
    assert len(scripts) > 10
    assert listening == []
