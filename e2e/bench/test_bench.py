"""The benchmarks still run; what they say is printed by ``build.py bench``, and asserted nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.bench.run import Row, joined_page, python_page
from e2e.kit import Site

from tabhelm.testing import ChaosBrowser


def test_a_row_says_what_it_is_to_the_raw_lock() -> None:
    row = Row.of("x", {"ours": [6.0, 9.0, 7.0], "raw": [2.0, 1.0, 2.0]}, goal=3.0)
    assert (row.ours_ms, row.raw_ms, row.ratio, row.rounds) == (7.0, 2.0, 3.5, 3)
    assert str(row).endswith("OVER")


@pytest.mark.thorough
async def test_the_benchmarks_run(browser: ChaosBrowser, site: Site, bundle: Path) -> None:
    of_python = await python_page(await site.open(browser), site, bundle, rounds=2, warm=1)
    of_page = await joined_page(await site.open(browser), "shared", rounds=2, warm=1)
    assert of_python.rounds == of_page.rounds == 2
    assert min(of_python.ours_ms, of_python.raw_ms, of_page.ours_ms, of_page.raw_ms) > 0
