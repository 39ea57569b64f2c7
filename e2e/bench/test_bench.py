"""The benchmarks still run, and tell a goal that is missed. Whether one is, only ``build.py bench`` says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from e2e.bench.elections import from_a_page, from_python
from e2e.bench.queues import claim_rows, enqueue_rows, flush_rows
from e2e.bench.rows import Row
from e2e.bench.run import main, missed_goals
from e2e.kit import Site

from tabhelm.testing import ChaosBrowser


def test_a_row_says_what_it_is_to_the_other() -> None:
    row = Row.of("x", [6.0, 9.0, 7.0], [2.0, 1.0, 2.0], at_most=3.0)
    assert (row.ours.median, row.others.median, row.ratio.median, row.rounds) == (7.0, 2.0, 3.5, 3)
    assert (row.ratio.low, row.ratio.high) == (3.0, 9.0)
    assert row.met is False and str(row).endswith("MISSED")
    assert Row.of("x", [6.0], [2.0], at_most=3.0, at_least=2.0).met
    assert Row.of("x", [6.0], [2.0], at_least=4.0).met is False
    assert Row.of("x", [6.0], [2.0]).met is None


def test_each_goal_that_is_missed_is_told() -> None:
    good = Row.of("good", [2.0], [2.0], at_most=3.0)
    bad = Row.of("bad", [8.0], [2.0], at_most=3.0)
    met = {"name": "receiver", "per_second": 2_000, "goal": 2_000.0, "growth_mib": 10.0, "growth_goal_mib": 10.0}
    slow, fat = {**met, "per_second": 1_999}, {**met, "growth_mib": 10.1, "operations": 100_000}
    assert missed_goals([good], [met, {"name": "receiver", "missing": "no server"}]) == []
    assert missed_goals([good, bad], [slow, fat]) == [
        "bad beside raw: ratio 4.00, goal ≤ 3",
        "receiver: 1,999 ops/s, goal ≥ 2,000",
        "receiver: memory +10.1 MiB over 100,000 operations, goal ≤ 10",
    ]


async def test_a_goal_that_is_missed_ends_it_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row.of("bad", [8.0], [2.0], at_most=3.0)]

    async def measured(*_: object) -> tuple[list[Row], list[dict[str, Any]]]:
        return rows, []

    monkeypatch.setattr("e2e.bench.run.run", measured)
    assert await asyncio.to_thread(main, ["--only", "claim"]) == 1
    out, err = capsys.readouterr()
    assert "goal missed: bad beside raw: ratio 4.00, goal ≤ 3\n" in err
    assert json.loads(out)["missed"] == ["bad beside raw: ratio 4.00, goal ≤ 3"]
    rows.clear()
    assert await asyncio.to_thread(main, ["--only", "claim"]) == 0


@pytest.mark.thorough
async def test_the_elections_run(browser: ChaosBrowser, site: Site, bundle: Path) -> None:
    of_python = await from_python(await site.open(browser), site, bundle, rounds=2, warm=1)
    of_page = await from_a_page(await site.open(browser), "shared", rounds=2, warm=1)
    assert of_python.rounds == of_page.rounds == 2
    assert min(of_python.ours.low, of_python.others.low, of_page.ours.low, of_page.others.low) > 0


@pytest.mark.thorough
async def test_the_queues_run(site: Site, bundle: Path) -> None:
    told: list[str] = []
    rows = await enqueue_rows(site, told.append, rounds=2, singles=5, warm=1)
    rows += await flush_rows(site, told.append, count=400, rounds=1, part=0.05)
    rows += await claim_rows(site, bundle, told.append, few=100, many=300, rounds=2)
    assert len(rows) == 8 and min(min(row.ours.low, row.others.low) for row in rows) > 0
    assert told
