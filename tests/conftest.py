"""Shared by all tests: where the sources and the conformance cases are."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# How long an example takes says more of what else runs on the machine than of the code.
settings.register_profile("tabhelm", deadline=None)
settings.load_profile("tabhelm")

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT / "tests" / "conformance", ROOT / "tests" / "core", ROOT / "py_src"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
