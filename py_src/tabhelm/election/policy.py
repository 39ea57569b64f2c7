"""Who may lead a resource, and how long for: one frozen object, with the same meaning in Python and in JavaScript."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tabhelm.election.takeover import Takeover
from tabhelm.errors import InvalidPolicy

Visible = Literal["any", "prefer", "require"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipPolicy:
    """All times in seconds (in JavaScript the same keys in milliseconds: ``graceMs``).

    Raises:
        InvalidPolicy: a value of a wrong type or range, or values that contradict each other; names the key.
    """

    requires: Set[str] = frozenset()
    """Capabilities that a tab must have."""
    prefers: Set[str] = frozenset()
    """Capabilities that rank a tab higher."""
    visible: Visible = "any"
    """``require``: only a visible tab may lead. ``prefer``: visible tabs rank first among those that ask; a leader that
    is hidden does not yield to them."""
    online: bool = False
    """Only a tab that is online may lead."""
    fence: str | None = None
    """URL of the receiver whose marks are raised before the loop starts (the barrier): it must answer an empty batch
    with 200 and ``{"results": []}`` (docs/receiver.md)."""
    grace: float = 5.0
    """How long a loop that was asked to stop may take; 0 on freeze, pagehide, lifeline loss, stall and theft."""
    stall_after: float = 10.0
    """How long a page may be silent before its leadership is taken away: at least its ``join``'s ``stallAfterMs``, by
    which the engine judges. In this version a longer time here changes nothing."""
    max_hold: float | None = None
    """Longest tenure while another tab could lead: then the next one gets its turn. A leader that is alone goes on, and
    looks again after the same time. ``None``: no limit."""
    engine_patience: float = 2.0
    """How long a tab may take to acknowledge a grant; then the lock goes on to the next."""
    takeover: Takeover = Takeover.fenced(60.0)
    """When a leader that holds its lock in silence is replaced by force. On the wire ``takeoverAfterMs``: milliseconds,
    or ``"never"``."""
    backoff: float = 0.25
    """First pause after a failure; doubles with each."""
    max_backoff: float = 10.0
    trigger_window: tuple[float, float] = (0.05, 0.15)
    """News from others is collected for a random time in this window before the election looks again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "requires", _words("requires", self.requires))
        object.__setattr__(self, "prefers", _words("prefers", self.prefers))
        if self.visible not in get_args(Visible):
            raise InvalidPolicy(f"visible {self.visible!r} is not valid: 'any', 'prefer' or 'require' is expected")
        if not isinstance(self.online, bool):
            raise InvalidPolicy(f"online {self.online!r} is not valid: true or false is expected")
        if self.fence is not None and not (isinstance(self.fence, str) and self.fence):
            raise InvalidPolicy(f"fence {self.fence!r} is not valid: the URL of a fenced receiver is expected")
        for key in ("grace", "stall_after", "engine_patience", "backoff", "max_backoff"):
            _seconds(key, getattr(self, key), zero=key == "grace")
        if not isinstance(self.takeover, Takeover):
            raise InvalidPolicy(
                f"takeover {self.takeover!r} is not valid: Takeover.fenced(after=seconds) or Takeover.never is expected"
            )
        if self.max_hold is not None:
            _seconds("max_hold", self.max_hold)
        if self.max_backoff < self.backoff:
            raise InvalidPolicy(f"max_backoff {self.max_backoff:g} s is shorter than backoff {self.backoff:g} s")
        if self.engine_patience > self.stall_after:
            raise InvalidPolicy(
                f"engine_patience {self.engine_patience:g} s is longer than stall_after {self.stall_after:g} s: "
                "a tab would be given up before its grant is"
            )

    @classmethod
    def from_wire(cls, value: object) -> LeadershipPolicy:
        """Build a policy from a page's object: camelCase keys, times in milliseconds with the suffix ``Ms``.

        Raises:
            InvalidPolicy: an unknown key, or a value that is not allowed; names the key as the page wrote it.
        """
        if not isinstance(value, Mapping):
            raise InvalidPolicy(f"policy {value!r} is not valid: an object is expected")
        unknown = [key for key in value if key not in _WIRE]
        if unknown:
            raise InvalidPolicy(f"policy key {unknown[0]!r} is unknown: known are {', '.join(sorted(_WIRE))}")
        value = dict(value)
        if "enginePatienceMs" not in value and isinstance(value.get("stallAfterMs"), (int, float)):
            value["enginePatienceMs"] = min(2000, value["stallAfterMs"])  # a patience that nobody named is no conflict
        known = {_WIRE[key][0]: _WIRE[key][1](key, item) for key, item in value.items() if item is not None}
        return cls(**known)


def _words(key: str, value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, (set, frozenset, list, tuple)):
        raise InvalidPolicy(f"{key} {value!r} is not valid: a list of capability names is expected")
    if not all(isinstance(item, str) and item for item in value):
        raise InvalidPolicy(f"{key} {value!r} is not valid: every capability is a non-empty string")
    return frozenset(value)


def _seconds(key: str, value: object, *, zero: bool = False) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        raise InvalidPolicy(f"{key} {value!r} is not valid: a positive number of seconds is expected")


def _same(key: str, value: Any) -> Any:
    return value


def _ms(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidPolicy(f"{key} {value!r} is not valid: a number of milliseconds is expected")
    return value / 1000


_TIMES = {"grace", "stall_after", "max_hold", "engine_patience", "backoff", "max_backoff"}
_HIDDEN = {"trigger_window", "takeover"}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


_WIRE: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    _camel(field.name) + ("Ms" if field.name in _TIMES else ""): (field.name, _ms if field.name in _TIMES else _same)
    for field in fields(LeadershipPolicy)
    if field.name not in _HIDDEN
} | {"takeoverAfterMs": ("takeover", Takeover.from_wire)}
