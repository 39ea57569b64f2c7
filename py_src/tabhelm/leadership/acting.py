"""Let the monitor of acting leaders know of an election."""

from __future__ import annotations

from tabhelm.leadership.election import Election
from tabhelm.leadership.states import Idle, State, Stopped
from tabhelm.observe import ActingMonitor

_TROUBLE = frozenset({"loop-still-running"})
"""Reasons to be idle that are no matter of policy: it should lead, and cannot."""


def watch_acting(monitor: ActingMonitor, election: Election) -> None:
    """Watch whether exactly one leads what this election stands for, until it is over."""

    def wanted() -> bool:
        status = election.status
        return not isinstance(status, (Idle, Stopped)) or status.reason in _TROUBLE

    stop = monitor.stands(election.key, election.policy.acting_alarm, wanted)

    def changed(state: State) -> None:
        if isinstance(state, Stopped):
            stop()
        else:
            monitor.look(election.key)

    election.subscribe(changed)
