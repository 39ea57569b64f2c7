"""Who is here? Identity, beacons and the roster: hints, judged by each observer's own clock. Locks decide, not
these."""

from __future__ import annotations

from tabhelm.presence.beacon import Beaconer
from tabhelm.presence.engine_watch import EngineWatch
from tabhelm.presence.facts import TabFacts
from tabhelm.presence.identity import Identity, TabMemory, claim_identity, draw_id
from tabhelm.presence.infos import LeaderInfo, LeaderReport, Liveness, TabInfo
from tabhelm.presence.roster import Roster
from tabhelm.presence.suspects import Suspects

__all__ = [
    "Beaconer",
    "EngineWatch",
    "Identity",
    "LeaderInfo",
    "LeaderReport",
    "Liveness",
    "Roster",
    "Suspects",
    "TabFacts",
    "TabInfo",
    "TabMemory",
    "claim_identity",
    "draw_id",
]
