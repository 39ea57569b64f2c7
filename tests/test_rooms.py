"""The rooms of docs/architecture.md: arrows point downwards only, and only ``browser/`` knows JavaScript."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "py_src" / "tabhelm"
BOTTOM = {"errors", "json_text", "listeners", "names", "messages"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "json_text": set(),
    "listeners": set(),
    "names": {"errors"},
    "messages": {"errors"},
    "ports": {"errors"},
    "tasks": {"ports"},
    "app_headers": {"ports", "tasks"},
    "observe": {"ports", "tasks"},
    "browser": {"ports", "host"},  # host: only to start the engine, from its entry point
    "simulated": {"ports", "fencing", "host"},
    "fencing": {"ports"},
    "guard": {"fencing"},
    "presence": {"ports", "tasks"},
    "election": {"ports", "app_headers", "presence", "observe"},
    "authority": {"ports", "app_headers", "tasks", "fencing"},
    "leadership": {"ports", "app_headers", "tasks", "observe", "fencing", "presence", "election", "authority"},
    "queue": {"ports", "app_headers", "tasks", "observe", "fencing", "election", "leadership"},
    "locking": {"ports", "tasks", "observe"},
    "reopening": {"ports"},
    "storage_watch": {"ports", "tasks", "observe", "fencing"},
    "services": {
        *("ports", "tasks", "observe", "fencing", "presence", "election", "authority", "leadership", "queue"),
        "reopening",
        "storage_watch",
        "locking",
    },
    "tab": {"locking", "ports", "tasks", "observe", "presence", "election", "leadership", "queue", "services"},
    "host": {
        *("ports", "tasks", "observe", "fencing", "presence", "election", "leadership", "queue", "locking", "services"),
        "tab",
    },
    "server": {"fencing"},
    "testing": {"fencing"},
}
AMBIENT = {"time", "random", "uuid", "secrets", "datetime"}
CPYTHON_SIDE = {"server", "testing", "simulated"}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_downwards(path: Path) -> None:
    own = room(path)
    allowed = ALLOWED[own] | BOTTOM | {own}
    for name in imports(path):
        if name.startswith("tabhelm."):
            target = name.split(".")[1]
            assert target in allowed, f"{own} may not import {target} ({path.name})"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_browser_room_knows_javascript_and_nobody_an_ambient_clock(path: Path) -> None:
    own = room(path)
    for name in imports(path):
        top = name.split(".")[0]
        if own != "browser":
            assert top not in ("js", "pyodide", "pyodide_js"), f"{path.name} imports {name}"
        if own not in CPYTHON_SIDE | {"browser"}:
            assert top not in AMBIENT, f"{path.name} imports {name}: clock and randomness are ports"
    if own not in CPYTHON_SIDE | {"browser"}:
        text = path.read_text()
        for banned in ("asyncio.sleep", "asyncio.timeout(", "asyncio.wait(", "asyncio.shield(", "asyncio.run("):
            assert banned not in text, f"{path.name} uses {banned}"


def test_the_documentation_has_a_row_for_each_room() -> None:
    text = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    told = {name.strip("`/") for row in rows for name in row.replace(",", " ").split()}
    assert ALLOWED.keys() - told == set()
