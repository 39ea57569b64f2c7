"""Say that a tenure leads, and how it does."""

from __future__ import annotations

from tabhelm.leadership.tenure import Tenure
from tabhelm.messages import LeaderNote
from tabhelm.presence import Identity, LeaderReport, Roster


def announce(roster: Roster, tenure: Tenure, who: Identity, began: float) -> None:
    """From now on the roster says that this tab leads; how far it is goes out with each beat, a change of health soon.

    ``began`` is monotonic time.
    """
    grant = tenure.grant if tenure.epoch is not None else None
    domain, epoch, authority = (grant.domain, grant.epoch, grant.authority) if grant else ("", 0, "")
    note = LeaderNote(tenure.resource, who.tab_id, who.connection_id, domain, epoch, 0.0, authority)
    roster.set_leading(note, began, lambda: LeaderReport(tenure.health, tenure.progress, tenure.progress_at))
    health = tenure.health

    def told() -> None:
        nonlocal health
        if tenure.health != health:  # a loop may tell its progress a thousand times a second: that is no news
            health = tenure.health
            roster.tell()

    tenure.on_report(told)
