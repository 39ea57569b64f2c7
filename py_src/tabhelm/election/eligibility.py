"""May this tab lead? Present is not eligible."""

from __future__ import annotations

from tabhelm.election.policy import LeadershipPolicy
from tabhelm.presence import TabInfo


def ineligible(policy: LeadershipPolicy, tab: TabInfo) -> str | None:
    """Why ``tab`` may not lead under ``policy``: one short word; ``None`` if it may."""
    if tab.liveness != "alive":
        return tab.liveness
    if tab.lifecycle in ("frozen", "stalled", "closing"):
        return tab.lifecycle
    if policy.visible == "require" and not tab.visible:
        return "hidden"
    if policy.online and not tab.online:
        return "offline"
    if not policy.requires <= tab.capabilities:
        return "capability-missing"
    return None
