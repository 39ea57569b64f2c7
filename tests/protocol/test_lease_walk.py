"""The random walk again, where a lease in IndexedDB decides about the job: everything that holds with locks holds here.

The queue of each tab is flushed under the Web Locks as ever, so both kinds of authorities live in one store.
"""

from __future__ import annotations

import pytest
from lab import MORE
from test_walk import Walk

SEEDS = 16 * MORE
LEASE = {"authorities": ["indexeddb-lease"]}


class LeaseWalk(Walk):
    def open(self) -> None:
        self.opened += 1
        writer = self.lab.writer(thinking=self.rng.choice([0.0, 0.0, 4.0]))
        build = "one" if self.opened % 2 else "two"
        self.lab.tab(f"t{self.opened}", build=build, lead=True, queue=True, loop=writer, policy=LEASE)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_leases_are_never_both_accepted(seed: int) -> None:
    walk = LeaseWalk(seed)
    verdict = walk.run()
    assert verdict.acknowledged > 10 and verdict.wiped == verdict.dead == []
    assert walk.lab.register.accepted, "the job was done under leases"


@pytest.mark.parametrize("seed", range(1000, 1000 + SEEDS // 2))
def test_nor_with_storage_wiped_now_and_then(seed: int) -> None:
    LeaseWalk(seed, wipes=True).run()
