from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.kit import at_a_new_address
from e2e.serving.site import OddSite, serve

from tabhelm.testing.pytest_engines import driven, engine, engine_pool

__all__ = ["driven", "engine", "engine_pool"]


@pytest.fixture
def odd(bundle: Path) -> Iterator[OddSite]:
    """The demo with the bundle at ``/tabhelm``, its answers as the test wants them."""
    yield from at_a_new_address(lambda: serve(None, tabhelm=bundle))
