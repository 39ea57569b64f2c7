"""Who should lead? Policy, eligibility, ranking, backoff: a hint. Acquisition decides."""

from __future__ import annotations

from tabhelm.election.backoff import NO_FAILURE, Backoff
from tabhelm.election.eligibility import ineligible
from tabhelm.election.policy import LeadershipPolicy
from tabhelm.election.ranking import rank
from tabhelm.election.takeover import Takeover

__all__ = ["NO_FAILURE", "Backoff", "LeadershipPolicy", "Takeover", "ineligible", "rank"]
