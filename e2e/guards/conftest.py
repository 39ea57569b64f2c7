"""The guards in real storage, in every engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.python_pages.site import PythonSite, serve

from tabhelm.testing.pytest_engines import driven, engine, engine_pool

__all__ = ["driven", "engine", "engine_pool"]


@pytest.fixture
def python_site(bundle: Path, tmp_path: Path) -> Iterator[PythonSite]:
    """The demo's application, and the wheel for pages that run Python themselves."""
    with serve(bundle, tmp_path) as site:
        yield site
