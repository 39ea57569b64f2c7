"""A site that serves badly on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .site import OddSite, serve


@pytest.fixture
def odd(bundle: Path) -> Iterator[OddSite]:
    """The demo with the bundle, its answers as the test wants them."""
    with serve(bundle) as site:
        yield site
