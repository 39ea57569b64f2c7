"""Who may lead a resource, and how long for: one frozen object, with the same meaning in Python and in JavaScript."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields
from inspect import iscoroutinefunction
from typing import Any, Literal, get_args

from tabhelm.app_headers import HeaderSource, checked
from tabhelm.election.takeover import Takeover
from tabhelm.errors import InvalidName, InvalidOptions, InvalidPolicy
from tabhelm.json_text import is_number
from tabhelm.names import check_scope
from tabhelm.names import unknown as unknown_key
from tabhelm.presence import TabInfo

Visible = Literal["any", "prefer", "require"]
Eligible = Callable[[TabInfo], bool | str]
"""True, or why not: one short word (False: ``ineligible``)."""
Score = Callable[[TabInfo], float]
SERVER_LEASE = "server-lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipPolicy:
    """All times in seconds (in JavaScript the same keys in milliseconds: ``graceMs``).

    Raises:
        InvalidPolicy: a value of a wrong type or range, or values that contradict each other; names the key.
    """

    requires: Set[str] = frozenset()
    """Capabilities that a tab must have."""
    prefers: Set[str] = frozenset()
    """Capabilities that rank a tab higher. A leader yields to a tab that has more of them (see ``cool_down``)."""
    visible: Visible = "any"
    """``require``: only a visible tab may lead. ``prefer``: visible tabs rank first, and a leader that is hidden yields
    to a visible one (see ``cool_down``)."""
    online: bool = False
    """Only a tab that is online may lead."""
    session: str | None = None
    """Whose tab may lead: ``"any"`` needs somebody who is signed in; another text needs this user session, or its first
    parts (``user`` for ``user:123``); ``None``: anybody's. In any case a change of session ends a tenure."""
    newest: bool = False
    """A tab does not lead while one with a newer version of the app stands: versions are compared as dotted numbers."""
    eligible: Eligible | None = None
    """The app's own say: called with this tab, at every look, so it must be quick and have no effects. Whoever changes
    its answer calls ``election.look()``. In JavaScript a function without arguments, called in the page."""
    score: Score | None = None
    """How good a leader this tab would be: the highest ranks first (after ``visible``, and after whose turn it is under
    ``max_hold``). Called whenever the tab changes, and at ``election.look()``; told to the other tabs."""
    fence: str | None = None
    """URL of the receiver whose marks are raised before the loop starts (the barrier): it must answer an empty batch
    with 200 and ``{"results": []}`` (docs/receiver.md)."""
    fence_headers: HeaderSource | None = None
    """The app's own headers for the barrier, such as a bearer token (cookies of this origin go by themselves): texts by
    name, or a function that gives them, which may be ``async`` and is asked before each request."""
    grace: float = 5.0
    """How long a loop that was asked to stop may take; 0 on freeze, pagehide, lifeline loss, stall and theft."""
    stall_after: float | None = None
    """How long the loop may go on without ``context.progress()``: then it is taken for stalled, and its tenure ends.
    ``None``: the loop is not asked. That the page itself hangs is noticed in any case, after its ``join``'s
    ``stallAfterMs``."""
    max_hold: float | None = None
    """Longest tenure while another tab could lead: then the next one gets its turn, whoever led least recently first. A
    leader that is alone goes on, and looks again after the same time. ``None``: no limit."""
    cool_down: float = 30.0
    """A leader is outranked by a preferred tab only after it has led for so long, so no more often than this; and a tab
    that resigned as ``unhealthy`` does not stand for so long, unless it is the only one."""
    health_every: float = 5.0
    """How often ``context.health()`` looks, where it is not told."""
    acting_alarm: float | None = 30.0
    """After how long without anybody who leads though this tab may, or with more than one, an ``acting-alarm`` event is
    given. ``None`` (on the wire ``"never"``): never."""
    engine_patience: float = 2.0
    """How long a tab may take to acknowledge a grant; then the lock goes on to the next."""
    takeover: Takeover = Takeover.fenced(60.0)
    """When a leader that holds its lock in silence is replaced by force. On the wire ``takeoverAfterMs``: milliseconds,
    or ``"never"``."""
    backoff: float = 0.25
    """First pause after a failure; doubles with each."""
    max_backoff: float = 10.0
    authorities: tuple[str, ...] = ("web-locks", "indexeddb-lease")
    """What may decide, in order: the first that is possible in the tab's context; a ``degraded`` event tells when it is
    not the first named. All tabs of a resource should name the same (docs/authorities.md)."""
    lease: str | None = None
    """URL of a lease service (docs/leases.md), where ``authorities`` is ``("server-lease",)``: absolute, or a path of
    this origin that begins with ``/``. The resource's name is appended to it."""
    lease_headers: HeaderSource | None = None
    """The same for it."""
    trigger_window: tuple[float, float] = (0.05, 0.15)
    """News from others is collected for a random time in this window before the election looks again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "requires", _words("requires", self.requires))
        object.__setattr__(self, "prefers", _words("prefers", self.prefers))
        if self.visible not in get_args(Visible):
            raise InvalidPolicy(f"visible {self.visible!r} is not valid: 'any', 'prefer' or 'require' is expected")
        for key in ("online", "newest"):
            if not isinstance(getattr(self, key), bool):
                raise InvalidPolicy(f"{key} {getattr(self, key)!r} is not valid: true or false is expected")
        if twice := self.requires & self.prefers:
            raise InvalidPolicy(f"prefers {min(twice)!r} is in requires too: every leader has it, so leave it out")
        _session(self.session)
        for key in ("eligible", "score"):
            _function(key, getattr(self, key))
        if self.fence is not None and not (isinstance(self.fence, str) and self.fence):
            raise InvalidPolicy(f"fence {self.fence!r} is not valid: the URL of a fenced receiver is expected")
        _headers("fence_headers", self.fence_headers)
        if self.fence is None and self.fence_headers is not None:
            raise InvalidPolicy("fence_headers are given without fence: there is nobody to send them to")
        for key in ("grace", "cool_down", "health_every", "engine_patience", "backoff", "max_backoff"):
            _time(key, getattr(self, key), zero=key in _ZERO)
        object.__setattr__(self, "authorities", _authorities(self.authorities))
        _lease(self.lease, self.lease_headers, self.authorities)
        if not isinstance(self.takeover, Takeover):
            raise InvalidPolicy(
                f"takeover {self.takeover!r} is not valid: Takeover.fenced(after=seconds) or Takeover.never is expected"
            )
        for key in ("max_hold", "stall_after", "acting_alarm"):
            if getattr(self, key) is not None:
                _time(key, getattr(self, key))
        if self.max_backoff < self.backoff:
            raise InvalidPolicy(f"max_backoff {self.max_backoff:g} s is shorter than backoff {self.backoff:g} s")
        _window(self.trigger_window)

    @classmethod
    def from_wire(cls, value: object, **own: Any) -> LeadershipPolicy:
        """Build a policy from a page's object: camelCase keys, times in milliseconds with the suffix ``Ms``. ``own``
        adds what no message carries (functions), under Python's names.

        Raises:
            InvalidPolicy: an unknown key, or a value that is not allowed; names the key as the page wrote it.
        """
        if not isinstance(value, Mapping):
            raise InvalidPolicy(f"policy {value!r} is not valid: an object is expected")
        unknown = [key for key in value if key not in _WIRE]
        if functions := [key for key in ("eligible", "score") if key in unknown]:
            given = value[functions[0]]
            raise InvalidPolicy(f"policy key {functions[0]!r} {given!r:.60} is not valid: a function is expected")
        if unknown:
            raise InvalidPolicy(unknown_key("policy key", unknown[0], _WIRE))
        known = {_WIRE[key][0]: _WIRE[key][1](key, item) for key, item in value.items() if item is not None}
        whole: dict[str, Any] = {field.name: field.default for field in fields(cls)} | known
        first, most = whole["backoff"] * 1000, whole["max_backoff"] * 1000
        if most < first:
            raise InvalidPolicy(f"maxBackoffMs {most:g} is shorter than backoffMs {first:g}")
        try:
            return cls(**(known | own))
        except InvalidPolicy as error:
            raise InvalidPolicy(_in_page_words(str(error))) from None


def _words(key: str, value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, (set, frozenset, list, tuple)):
        raise InvalidPolicy(f"{key} {value!r} is not valid: a list of capability names is expected")
    if not all(isinstance(item, str) and item for item in value):
        raise InvalidPolicy(f"{key} {value!r} is not valid: every capability is a non-empty string")
    return frozenset(value)


def _authorities(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)) or not value:
        raise InvalidPolicy(f"authorities {value!r} is not valid: a list of names in order is expected")
    if not all(isinstance(name, str) and name for name in value):
        raise InvalidPolicy(f"authorities {value!r} is not valid: every name is a non-empty string")
    if len(set(value)) < len(value):
        raise InvalidPolicy(f"authorities {value!r} is not valid: each is named once")
    return tuple(value)


def _lease(url: object, headers: object, authorities: tuple[str, ...]) -> None:
    if (url is None) != (SERVER_LEASE not in authorities):
        named = "is not given" if url is None else f"{url!r:.80} is given"
        raise InvalidPolicy(
            f"lease {named}, and authorities are {authorities!r}: the URL of a lease service and {SERVER_LEASE!r} go "
            "together"
        )
    if url is None:
        if headers is not None:
            raise InvalidPolicy("lease_headers are given without lease: there is nobody to send them to")
        return
    if len(authorities) > 1:
        raise InvalidPolicy(
            f"authorities {authorities!r} is not valid: {SERVER_LEASE!r} stands alone, for what else is named there "
            "would let each device have a leader of its own"
        )
    if not isinstance(url, str) or not _URL.match(url):
        raise InvalidPolicy(
            f"lease {url!r:.80} is not valid: the URL of a lease service is expected, beginning with 'https://', "
            "'http://' or '/', without '?' and '#'"
        )
    _headers("lease_headers", headers)


def _headers(key: str, value: Any) -> Any:
    try:
        if value is not None and not callable(value):
            checked(value, key)
    except InvalidOptions as error:
        raise InvalidPolicy(str(error)) from None
    return value


def _function(key: str, value: object) -> None:
    if value is not None and not callable(value):
        raise InvalidPolicy(f"{key} {value!r} is not valid: a function of a tab is expected")
    if iscoroutinefunction(value):
        raise InvalidPolicy(f"{key} {value!r} is not valid: it must answer at once, so it cannot be async")


def _time(key: str, value: object, unit: str = "seconds", *, zero: bool = False) -> None:
    if not is_number(value) or value < 0 or (value == 0 and not zero):
        raise InvalidPolicy(f"{key} {value!r:.60} is not valid: a positive number of {unit} is expected")


def _session(value: object) -> None:
    try:
        if value is not None and not isinstance(value, str):
            raise InvalidName("no text")
        check_scope(value)
    except InvalidName:
        raise InvalidPolicy(f'session {value!r} is not valid: "any", or a user session, is expected') from None


def _window(value: object) -> None:
    pair: tuple[Any, ...] = value if isinstance(value, tuple) and len(value) == 2 else (None, None)
    for each in pair:
        _time("trigger_window", each, zero=True)
    if pair[0] > pair[1]:
        raise InvalidPolicy(f"trigger_window {value!r} is not valid: its first time is longer than its second")


def _same(key: str, value: Any) -> Any:
    return value


def _ms(key: str, value: Any) -> float:
    _time(key, value, "milliseconds", zero=_WIRE[key][0] in _ZERO)
    return float(value / 1000)


_URL = re.compile(r"(?:https?://[^\s/?#]+)?/(?!/)[^\s?#]*\Z")
_ZERO = {"grace", "cool_down"}
"""Times that may be none."""
_TIMES = {
    *("grace", "stall_after", "max_hold", "cool_down", "health_every"),
    *("engine_patience", "backoff", "max_backoff"),
}
_HIDDEN = {"trigger_window", "takeover", "acting_alarm", "eligible", "score", "lease_headers", "fence_headers"}


def _in_page_words(text: str) -> str:
    for name in ("fence_headers", "lease_headers"):
        text = text.replace(name, _camel(name))
    return text


def _ms_or_never(key: str, value: Any) -> float | None:
    return None if value == "never" else _ms(key, value)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


_WIRE: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    _camel(field.name) + ("Ms" if field.name in _TIMES else ""): (field.name, _ms if field.name in _TIMES else _same)
    for field in fields(LeadershipPolicy)
    if field.name not in _HIDDEN
} | {
    "takeoverAfterMs": ("takeover", Takeover.from_wire),
    "actingAlarmMs": ("acting_alarm", _ms_or_never),
    "fenceHeaders": ("fence_headers", _headers),
    "leaseHeaders": ("lease_headers", _headers),
}
