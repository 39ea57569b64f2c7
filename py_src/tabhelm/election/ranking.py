"""In which order should the candidates lead? Deterministic, so that not everybody asks at once. A hint."""

from __future__ import annotations

from collections.abc import Iterable

from tabhelm.election.eligibility import ineligible
from tabhelm.election.policy import LeadershipPolicy
from tabhelm.presence import TabInfo

_LIFECYCLE = {"active": 3, "hidden": 2, "restored": 1}
_AGE_STEP = 60.0
_AGE_CAP = 20


def rank(policy: LeadershipPolicy, resource: str, tabs: Iterable[TabInfo]) -> list[TabInfo]:
    """The eligible tabs that stand for ``resource``, best first.

    Compared are: visibility where the policy prefers it, lifecycle, preferred capabilities, age (whole minutes, at most
    20, so that observers with slightly different clocks agree), tab id.
    """

    def key(tab: TabInfo) -> tuple[int, int, int, int, str, str]:
        return (
            -int(policy.visible == "prefer" and tab.visible),
            -_LIFECYCLE.get(tab.lifecycle, 0),
            -len(policy.prefers & tab.capabilities),
            -min(_AGE_CAP, int(tab.age // _AGE_STEP)),
            tab.tab_id,
            tab.connection_id,
        )

    return sorted((tab for tab in tabs if resource in tab.stands and ineligible(policy, tab) is None), key=key)
