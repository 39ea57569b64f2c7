"""The real core under random trouble, and proof that the judge would notice."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from chaos import Chaos, Outcome

from tabhelm.fencing import FencingToken
from tabhelm.fencing.epochs import EpochIssuer
from tabhelm.host.engine import start
from tabhelm.simulated import PageElection, SimulatedReceiver

SEEDS = int(os.environ.get("TABHELM_CHAOS_SEEDS", "24"))
"""Raise it for a long search."""


def played(seed: int, **options: Any) -> Outcome:
    return Chaos(seed, start, **options).run()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_operation_is_lost_or_doubled_and_nobody_leads_beside_another(seed: int) -> None:
    outcome = played(seed)
    assert outcome.problems == []
    assert outcome.acknowledged > 0


@pytest.mark.parametrize("seed", range(1000, 1000 + SEEDS // 2))
def test_wiped_storage_never_revives_a_stale_leader(seed: int) -> None:
    assert played(seed, wipes=True).problems == []


def test_both_kinds_of_hosts_lead_and_silent_leaders_are_replaced_by_force() -> None:
    outcomes = [played(seed) for seed in range(32)]
    assert set().union(*(outcome.hosts for outcome in outcomes)) == {"shared", "window"}
    assert sum(outcome.takeovers for outcome in outcomes) >= 1


@pytest.mark.parametrize("seed", range(2000, 2000 + SEEDS // 2))
def test_the_same_where_every_page_runs_its_own_engine(seed: int) -> None:
    assert played(seed, hosts=("window",)).problems == []


def test_a_seed_replays_exactly() -> None:
    first, second, other = played(5), played(5), played(6)
    assert (first.digest, first.steps, first.trace) == (second.digest, second.steps, second.trace)
    assert other.digest != first.digest


def noticed(word: str, seeds: int = 60, **options: Any) -> bool:
    return any(word in problem for seed in range(seeds) for problem in played(seed, **options).problems)


def test_the_judge_notices_a_page_that_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageElection, "abort", lambda self, reason: None)
    monkeypatch.setattr(PageElection, "doubt", lambda self: None)
    monkeypatch.setattr(PageElection, "acting", property(lambda self: self._run is not None))
    assert noticed("two believers")


def test_the_judge_notices_a_receiver_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SimulatedReceiver._one

    def forgetful(self: SimulatedReceiver, subject: str, token: FencingToken, operation: dict[str, Any]) -> Any:
        self._known.clear()
        return original(self, subject, token, operation)

    monkeypatch.setattr(SimulatedReceiver, "_one", forgetful)
    assert noticed("took effect twice")


class OpenDoor:
    """A guard that refuses nobody."""

    def judge(self, subject: str, token: FencingToken) -> None:
        return None


def test_the_judge_notices_a_guard_that_refuses_nobody() -> None:
    assert noticed("stale epoch", guard=OpenDoor())


def test_the_judge_notices_epochs_that_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EpochIssuer._write

    async def stuck(self: EpochIssuer, tx: Any, grant: Any, takeovers: int) -> Any:
        return await original(self, tx, replace(grant, epoch=1), takeovers)

    monkeypatch.setattr(EpochIssuer, "_write", stuck)
    assert noticed("never took effect")
