"""An election's state in the page's words."""

from __future__ import annotations

from typing import Any

from tabhelm.leadership import BackingOff, Idle, Leading, State, SteppingDown, Stopped, Waiting
from tabhelm.leadership.states import name_of


def status_message(state: State) -> dict[str, Any]:
    """Times in milliseconds."""
    status: dict[str, Any] = {"state": name_of(state)}
    match state:
        case Waiting():
            status |= {"standby": state.standby, "rank": state.rank}
        case Leading():
            status |= {"epoch": state.epoch, "since": state.since * 1000}
        case BackingOff():
            status |= {"reason": state.reason, "retryInMs": state.retry_in * 1000}
            if state.detail is not None:
                status["detail"] = state.detail
        case SteppingDown():
            status |= {"reason": state.reason, "epoch": state.epoch}
        case Stopped():
            status["reason"] = state.reason
            if state.error is not None:
                status["error"] = {"code": state.reason, "message": state.error}
        case Idle():
            status["reason"] = state.reason
    return status
