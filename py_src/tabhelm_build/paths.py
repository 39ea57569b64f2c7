"""Where things are in the repository."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "py_src"
TOOLS = SOURCES / "tabhelm_build"
WEB = ROOT / "web"
NODE_MODULES = WEB / "node_modules"
DIST = ROOT / "dist"
CACHE = ROOT / "build"
"""Made things that are expensive to make again: wheels, the memory snapshot, stamps. Safe to delete."""
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
LOCK = TOOLS / "requirements.lock"
