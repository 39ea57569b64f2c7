"""The site with users, and devices on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.devices.site import DeviceSite, serve


@pytest.fixture
def devices(bundle: Path) -> Iterator[DeviceSite]:
    """The site, with a fresh database, for one test."""
    with serve(bundle) as site:
        yield site
