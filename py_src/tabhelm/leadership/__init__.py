"""Who does lead, and how does it stop? States, tenures, leader contexts, the election runtime."""

from __future__ import annotations

from tabhelm.leadership.candidacy import Candidacy
from tabhelm.leadership.context import LeaderContext
from tabhelm.leadership.election import Candidate, Election, LeaderLoop
from tabhelm.leadership.states import BackingOff, Idle, Leading, State, SteppingDown, Stopped, Waiting
from tabhelm.leadership.tenure import Tenure, TokenStream

__all__ = [
    "BackingOff",
    "Candidacy",
    "Candidate",
    "Election",
    "Idle",
    "LeaderContext",
    "LeaderLoop",
    "Leading",
    "State",
    "SteppingDown",
    "Stopped",
    "Tenure",
    "TokenStream",
    "Waiting",
]
