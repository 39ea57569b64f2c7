"""Random programs of lock requests on the simulated locks: whatever the schedule, the notes are those of the rules.

``e2e/test_conformance.py`` compares the same programs step by step with real locks.
"""

from __future__ import annotations

from typing import Any

import pytest
from lock_programs import play

from tabhelm.simulated import World


def simulated(seed: int, schedule: int, contexts: int = 2, *, withdrawal_grants: bool = True) -> list[Any]:
    with World(f"{seed}/{schedule}") as world:
        world.lock_manager.withdrawal_grants = withdrawal_grants
        here = there = world.agent("here")
        first = second = world.ports(here)
        if contexts == 2:
            there = world.agent("there")
            second = world.ports(there)
        return world.run(here.start(play(first, second, seed)), limit=600)  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(40))
def test_a_program_sees_the_same_under_every_schedule(seed: int) -> None:
    first = simulated(seed, 0)
    assert any(held or waiting for *_, seen in first for held, waiting in seen.values())
    for schedule, contexts in ((1, 2), (2, 2), (3, 1)):
        assert simulated(seed, schedule, contexts) == first


def test_the_programs_reach_every_outcome() -> None:
    outcomes = {outcome for seed in range(40) for _, action, _, _, outcome, _ in simulated(seed, 0) if outcome}
    assert {"got it", "taken", "stolen", "1 let go, 1 withdrawn"} <= outcomes


def test_some_program_tells_a_browser_that_does_not_look_again_after_a_withdrawal() -> None:
    """Else the comparison with real browsers would not have found what Chromium does."""
    assert any(simulated(seed, 0) != simulated(seed, 0, withdrawal_grants=False) for seed in range(6))
