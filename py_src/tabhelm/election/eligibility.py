"""May this tab lead? Present is not eligible."""

from __future__ import annotations

from tabhelm.election.policy import LeadershipPolicy
from tabhelm.presence import TabInfo

MAX_REASON = 100


def ineligible(policy: LeadershipPolicy, tab: TabInfo) -> str | None:
    """Why ``tab`` may not lead under ``policy``, as far as everybody can see: one short word; ``None`` if it may."""
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


def session_unfit(policy: LeadershipPolicy, session: str | None) -> str | None:
    """Why a tab with this user session may not lead. Others are not told whose tab it is."""
    wanted = policy.session
    if wanted is None or wanted == session:
        return None
    if session is None:
        return "no-session"
    return None if wanted == "any" or wanted.startswith(f"{session}:") else "session-mismatch"


def own_say(policy: LeadershipPolicy, tab: TabInfo) -> str | None:
    """What the policy's ``eligible`` says against this tab: one short word; ``None`` if nothing.

    Raises:
        Exception: whatever the function raises.
    """
    if policy.eligible is None:
        return None
    answer = policy.eligible(tab)
    if answer is True:
        return None
    return str(answer)[:MAX_REASON] if isinstance(answer, str) and answer else "ineligible"
