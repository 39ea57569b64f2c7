from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from e2e.demo.person import Person
from e2e.kit import Site

from tabhelm.testing import ChaosBrowser


@pytest.fixture
def arrives(browser: ChaosBrowser, site: Site) -> Callable[..., Awaitable[Person]]:
    """``await arrives("&host=window")``: a person with a tab of their own."""

    async def arrive(query: str = "") -> Person:
        return await Person.arrives(browser, site, query)

    return arrive
