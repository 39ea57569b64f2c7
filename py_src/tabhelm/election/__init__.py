"""Who should lead? Policy, eligibility, ranking, backoff: a hint. Acquisition decides."""

from __future__ import annotations

from tabhelm.election.backoff import NO_FAILURE, Backoff
from tabhelm.election.eligibility import at_once, ineligible, own_say, session_unfit
from tabhelm.election.policy import LeadershipPolicy
from tabhelm.election.ranking import outdated, outranked, rank
from tabhelm.election.takeover import Takeover
from tabhelm.election.versions import version_key

__all__ = [
    "NO_FAILURE",
    "Backoff",
    "LeadershipPolicy",
    "Takeover",
    "at_once",
    "ineligible",
    "outdated",
    "outranked",
    "own_say",
    "rank",
    "session_unfit",
    "version_key",
]
