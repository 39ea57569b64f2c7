"""In which order should the candidates lead? Deterministic, so that not everybody asks at once. A hint."""

from __future__ import annotations

from collections.abc import Iterable

from tabhelm.election.eligibility import ineligible
from tabhelm.election.policy import LeadershipPolicy
from tabhelm.election.versions import version_key
from tabhelm.presence import TabInfo

_LIFECYCLE = {"active": 3, "hidden": 2, "restored": 1}
_AGE_STEP = 60.0
_AGE_CAP = 20


def rank(policy: LeadershipPolicy, resource: str, tabs: Iterable[TabInfo]) -> list[TabInfo]:
    """The eligible tabs that stand for ``resource``, best first.

    Compared are: visibility where the policy prefers it; under ``max_hold`` whose turn it is, who led least recently
    (or never) first; the app's own score; lifecycle; preferred capabilities; age (whole minutes, at most 20, so that
    observers with slightly different clocks agree); tab id.
    """

    def key(tab: TabInfo) -> tuple[int, int, float, int, int, int, str, str]:
        return (
            -int(policy.visible == "prefer" and tab.visible),
            0 if policy.max_hold is None else tab.turn(resource),
            -tab.score(resource),
            -_LIFECYCLE.get(tab.lifecycle, 0),
            -len(policy.prefers & tab.capabilities),
            -min(_AGE_CAP, int(tab.age // _AGE_STEP)),
            tab.tab_id,
            tab.connection_id,
        )

    found = [tab for tab in tabs if resource in tab.stands and ineligible(policy, tab) is None]
    if policy.newest and found:
        newest = max(version_key(tab.version) for tab in found)
        found = [tab for tab in found if version_key(tab.version) == newest]
    return sorted(found, key=key)


def outdated(policy: LeadershipPolicy, resource: str, own: TabInfo, tabs: Iterable[TabInfo]) -> bool:
    """Whether a tab with a newer version of the app could lead, and the policy wants that."""
    if not policy.newest:
        return False
    mine = version_key(own.version)
    return any(
        version_key(tab.version) > mine and tab.connection_id != own.connection_id
        for tab in rank(policy, resource, tabs)
    )


def outranked(policy: LeadershipPolicy, resource: str, leader: TabInfo, tabs: Iterable[TabInfo]) -> bool:
    """Whether the tab that would lead next is one that the policy prefers to this leader.

    Only what the policy names counts, visibility and capabilities, and the next in line must be better in the first in
    which they differ: so a leader never yields to a tab that would yield to it, nor to one that would let a third pass.
    """
    following = next((tab for tab in rank(policy, resource, tabs) if tab.connection_id != leader.connection_id), None)
    return following is not None and _preference(policy, following) > _preference(policy, leader)


def _preference(policy: LeadershipPolicy, tab: TabInfo) -> tuple[int, int]:
    return int(policy.visible == "prefer" and tab.visible), len(policy.prefers & tab.capabilities)
