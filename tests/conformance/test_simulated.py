"""The simulated ports behave as the conformance cases say, under several seeded schedules."""

from __future__ import annotations

import pytest
from cases_all import CASES
from cases_kit import Case

from tabhelm.simulated import World


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("contexts", [1, 2])
def test_conformance(case: Case, contexts: int) -> None:
    for seed in range(8):
        with World(seed) as world:
            here = there = world.agent("here")
            first = second = world.ports(here)
            if contexts == 2:
                there = world.agent("there")
                second = world.ports(there)
            world.run(here.start(case.function(first, second)), limit=600)
