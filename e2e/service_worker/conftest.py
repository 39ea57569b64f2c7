from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.kit import is_new
from e2e.serving.site import OddSite, serve

from tabhelm.testing.pytest_engines import driven, engine, engine_pool

__all__ = ["driven", "engine", "engine_pool"]


@pytest.fixture
def odd(bundle: Path) -> Iterator[OddSite]:
    """The demo with the bundle at ``/tabhelm``, its answers as the test wants them."""
    while True:
        with serve(None, tabhelm=bundle) as site:
            if is_new(site.url):
                yield site
                return
