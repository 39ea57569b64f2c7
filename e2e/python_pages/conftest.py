"""The site of the Python pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .site import PythonSite, serve


@pytest.fixture
def site(bundle: Path, tmp_path: Path) -> Iterator[PythonSite]:
    with serve(bundle, tmp_path) as served:
        yield served
