"""A history of at least 2,000 operations under every misfortune at once, proved from its logs.

What the three tabs were told is durable, what the epoch transactions granted and what the receiver accepted must fit:
nothing lost that still existed, nothing applied twice, nothing accepted from a stale owner, partitions in order.
``TABHELM_SEED=… python build.py test e2e e2e/offline_queue/test_history.py`` repeats the schedule of a failed run.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from e2e.kit import Site

from tabhelm.testing import ChaosBrowser
from tabhelm.testing.pytest_plugin import report_folder

from .adversity import schedule
from .crew import Crew

OPERATIONS = 2_000


def drawn_seed() -> int:
    """``TABHELM_SEED``, or a new one for each run: what was not tried yet is what may be wrong."""
    return int(os.environ.get("TABHELM_SEED") or random.SystemRandom().randrange(10**6))


async def prove(browser: ChaosBrowser, site: Site, report: Path, operations: int, extra_steps: int = 0) -> None:
    seed = drawn_seed()
    print(f"TABHELM_SEED={seed} plays this schedule again")
    steps = schedule(seed, operations, extra_steps)
    crew = Crew(browser, site, print)
    try:
        await crew.run(steps)
    finally:
        report.mkdir(parents=True, exist_ok=True)
        crew.recording.save(report / "recording.jsonl")
        print(f"recorded in {report / 'recording.jsonl'}; calls refused: {crew.refused}")
    verdict = crew.recording.history().check()
    print(verdict)
    verdict.require(f"TABHELM_SEED={seed}")
    assert verdict.acknowledged >= operations, "too little was tried"
    assert verdict.grants > 3 and verdict.dead and verdict.wiped, "the misfortunes did not befall anybody"
    assert crew.recording.told_lost() > 0, f"the queue did not say that {len(verdict.wiped)} operations are gone"


async def test_nothing_is_lost_doubled_stale_or_out_of_order(
    browser: ChaosBrowser, site: Site, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await prove(browser, site, report_folder(request, tmp_path_factory), OPERATIONS)


@pytest.mark.thorough
@pytest.mark.timeout(600)
async def test_nor_in_a_longer_run(
    browser: ChaosBrowser, site: Site, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await prove(browser, site, report_folder(request, tmp_path_factory), 3 * OPERATIONS, extra_steps=30)
