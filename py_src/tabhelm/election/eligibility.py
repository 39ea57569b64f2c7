"""May this tab lead? Present is not eligible."""

from __future__ import annotations

from inspect import isawaitable, iscoroutine
from typing import TypeVar

from tabhelm.election.policy import LeadershipPolicy
from tabhelm.presence import TabInfo

MAX_REASON = 100
Answer = TypeVar("Answer")


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


def at_once(what: str, answer: Answer) -> Answer:
    """What a function of the app's said.

    Raises:
        TypeError: it is yet to come: looks do not wait.
    """
    if not isawaitable(answer):
        return answer
    if iscoroutine(answer):
        answer.close()  # or Python warns, at another place, that nobody awaited it
    raise TypeError(f"{what} must answer at once: it gave {type(answer).__name__!r}, something to wait for")


def own_say(policy: LeadershipPolicy, tab: TabInfo) -> str | None:
    """What the policy's ``eligible`` says against this tab: one short word; ``None`` if nothing.

    Raises:
        Exception: whatever the function raises.
    """
    if policy.eligible is None:
        return None
    answer = at_once("eligible", policy.eligible(tab))
    if answer is True:
        return None
    return str(answer)[:MAX_REASON] if isinstance(answer, str) and answer else "ineligible"
