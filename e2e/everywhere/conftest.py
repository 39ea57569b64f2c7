"""Every case here runs in Chromium, Firefox and WebKitGTK, on the shared engine and on an engine in each page."""

from __future__ import annotations

import pytest

from tabhelm.testing.pytest_engines import driven, engine, engine_pool

__all__ = ["driven", "engine", "engine_pool", "host"]


@pytest.fixture(params=["shared", "window"])
def host(request: pytest.FixtureRequest) -> str:
    """Where the interpreter of the joined tabs runs."""
    return str(request.param)
