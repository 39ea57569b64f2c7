"""Shared by all tests: where the sources and the conformance cases are."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT / "tests" / "conformance", ROOT / "tests" / "core", ROOT / "py_src"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
