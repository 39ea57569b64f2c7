"""A history of at least 2,000 operations under every misfortune at once, proved from its logs.

What the three tabs were told is durable, what the epoch transactions granted and what the receiver accepted must fit:
nothing lost that still existed, nothing applied twice, nothing accepted from a stale owner, partitions in order.
``TABHELM_SEED=… python build.py test e2e e2e/offline_queue/test_history.py`` repeats the schedule of a failed run.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.kit import Site

from tabhelm.testing import ChaosBrowser
from tabhelm.testing.pytest_plugin import report_folder
from tabhelm.testing.verdict import Verdict

from .adversity import LARGEST_CALL, SEATS, schedule
from .crew import Crew

OPERATIONS = 2_000


def drawn_seed() -> int:
    """``TABHELM_SEED``, or a new one for each run: what was not tried yet is what may be wrong."""
    return int(os.environ.get("TABHELM_SEED") or random.SystemRandom().randrange(10**6))


class Diary:
    """What is to be known of a run however it ends, even if its process is killed."""

    def __init__(self, report: Path, seed: int) -> None:
        report.mkdir(parents=True, exist_ok=True)
        self.file = report / "steps.txt"
        self.file.write_text("", encoding="utf-8")
        self.tell(f"TABHELM_SEED={seed} plays this schedule again; the steps so far are in {self.file}")

    def tell(self, line: str) -> None:
        print(line)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


@contextmanager
def named(seed: int, crew: Crew) -> Iterator[None]:
    """Whatever breaks names the seed and the step, in the line that a summary shows."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"TABHELM_SEED={seed}, {crew.at}: {type(error).__name__}: {error}") from error


async def prove(
    browser: ChaosBrowser, site: Site, report: Path, operations: int, *, extra_steps: int = 0, limit: float = 165.0
) -> None:
    """``limit``: seconds, less than pytest's own, which would end the process and all that it knows."""
    seed = drawn_seed()
    diary = Diary(report, seed)
    steps = schedule(seed, operations, extra_steps)
    crew = Crew(browser, site, diary.tell)
    with named(seed, crew):
        try:
            async with asyncio.timeout(limit):
                await crew.run(steps)
        finally:
            crew.recording.save(report / "recording.jsonl")
            diary.tell(f"recorded in {report / 'recording.jsonl'}; calls refused: {crew.refused}")
        verdict = crew.recording.history().check()
        diary.tell(str(verdict))
        verdict.require()
        assert verdict.acknowledged >= operations, "too little was tried"
        it_befell(crew, verdict)
        what_is_gone_was_told(crew, verdict)


def it_befell(crew: Crew, verdict: Verdict) -> None:
    """The misfortunes were none on paper only."""
    assert verdict.grants > 3 and verdict.dead and verdict.wiped, "the misfortunes did not befall anybody"
    assert crew.offline, "no page was ever without a network"
    seen = crew.requests
    for status in (500, 503, 409):
        assert any(each["outcome"] == status for each in seen), f"the receiver never answered {status}"
    assert any(each["outcome"] == "stalled" for each in seen), "no request was left without an answer"
    copies = [each for each in seen if each.get("echo")]
    assert copies, "no late copy of a request came"
    assert all(each["outcome"] == 409 for each in copies if each["outcome"] != "open"), "a late copy was taken"
    unheard = [each for each in seen if each["outcome"] == 200 and not each["answered"] and each["operations"]]
    assert unheard, "no operations were applied without an answer to their sender"


def what_is_gone_was_told(crew: Crew, verdict: Verdict) -> None:
    """The queue reported what went with the storage: all of it, and no more than was there.

    At the wipe a call of each tab may be half-way: stored and not counted by the engine yet, or the other way round.
    """
    half_way = len(SEATS) * LARGEST_CALL
    told, waiting = crew.recording.told_lost(), crew.recording.waiting_when_wiped()
    assert len(told) == len(waiting), f"{len(waiting)} wipes, and the queue told of {len(told)}: {told}"
    assert sum(told) >= len(verdict.wiped) - half_way * len(told), f"of {len(verdict.wiped)} gone it told of {told}"
    for each, most in zip(told, waiting, strict=True):
        assert 0 < each <= most + half_way, f"it told of {told} gone, and {waiting} were there"


async def test_nothing_is_lost_doubled_stale_or_out_of_order(
    browser: ChaosBrowser, site: Site, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await prove(browser, site, report_folder(request, tmp_path_factory), OPERATIONS)


@pytest.mark.thorough
@pytest.mark.timeout(600)
async def test_nor_in_a_longer_run(
    browser: ChaosBrowser, site: Site, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    report = report_folder(request, tmp_path_factory)
    await prove(browser, site, report, 3 * OPERATIONS, extra_steps=30, limit=570.0)
