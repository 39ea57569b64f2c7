"""The simulated ports behave as the conformance cases say, under several seeded schedules."""

from __future__ import annotations

import pytest
from cases_all import CASES
from cases_authority import LEASES
from cases_kit import Case

from tabhelm.server import LeaseService, MemoryLeaseStore
from tabhelm.simulated import World, asgi_handler


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("contexts", [1, 2])
def test_conformance(case: Case, contexts: int) -> None:
    for seed in range(8):
        with World(seed) as world:
            store = MemoryLeaseStore(clock=lambda: 1e9 + world.loop.time())
            world.network.route(LEASES, asgi_handler(LeaseService(store, monotonic=world.loop.time)))
            here = there = world.agent("here")
            first = second = world.ports(here)
            if contexts == 2:
                there = world.agent("there")
                second = world.ports(there)
            world.run(here.start(case.function(first, second)), limit=600)
