"""The states of an election, each by what its holder may still assume. There is no ``is_leader`` anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from tabhelm.errors import InvalidTransition


@dataclass(frozen=True, slots=True)
class Idle:
    """Not taking part: the tab may not lead now (``reason``). Nothing may be assumed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Taking part. ``standby``: a lock request is queued; else the tab watches. Somebody else may be leading."""

    standby: bool
    rank: int


@dataclass(frozen=True, slots=True)
class Leading:
    """The authority is held, the epoch is durable, the receiver's marks are raised. Another tab may *believe* that it
    leads too, but its writes are refused. ``since`` is wall-clock time in seconds, for display."""

    epoch: int | None
    since: float


@dataclass(frozen=True, slots=True)
class SteppingDown:
    """Asked to stop: the token is revoked, the loop was told; no new protected write can start."""

    reason: str
    epoch: int | None


@dataclass(frozen=True, slots=True)
class BackingOff:
    """Tried and failed, or just stepped down: asks again in ``retry_in`` seconds. ``detail``: what failed, in words,
    such as what a receiver answered."""

    reason: str
    retry_in: float
    detail: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Stopped:
    """Over for good. ``error`` is the message of what ended it, if it did not end on request."""

    reason: str
    error: str | None = None


State = Idle | Waiting | Leading | SteppingDown | BackingOff | Stopped

_NAMES: dict[type, str] = {
    Idle: "idle",
    Waiting: "waiting",
    Leading: "leading",
    SteppingDown: "stepping-down",
    BackingOff: "backing-off",
    Stopped: "stopped",
}

TRANSITIONS: dict[str, frozenset[str]] = {
    "idle": frozenset({"idle", "waiting", "backing-off", "stopped"}),
    "waiting": frozenset({"waiting", "leading", "backing-off", "idle", "stopped"}),
    "leading": frozenset({"stepping-down"}),
    "stepping-down": frozenset({"backing-off", "idle", "stopped"}),
    "backing-off": frozenset({"waiting", "idle", "stopped", "backing-off"}),
    "stopped": frozenset(),
}
"""From each state, to which others; from one to itself where only its details change. Whoever leads steps down first,
whatever happens, and nothing comes after ``stopped``."""


def name_of(state: State) -> str:
    """The state's name on the wire: ``stepping-down``."""
    return _NAMES[type(state)]


def check_transition(before: State, after: State) -> None:
    """Refuse what is no step of an election.

    Raises:
        InvalidTransition: ``TRANSITIONS`` does not hold it: a fault in tabhelm.
    """
    old, new = name_of(before), name_of(after)
    if new not in TRANSITIONS[old]:
        raise InvalidTransition(
            f"an election cannot go from {old!r} to {new!r} ({getattr(after, 'reason', 'no reason')}): "
            f"allowed are {', '.join(sorted(TRANSITIONS[old])) or 'none'}"
        )
