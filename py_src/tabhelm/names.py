"""What is a thing called: lock, channel, database and resource names, built and parsed in one place.

Lock:      ``app:vN:kind:resource[:scope]``
Channel:   ``tabhelm:app:vN``, and ``tabhelm:app:data-v1`` for what concerns durable data, whatever the protocol
Database:  ``tabhelm:app`` (durable data is shared by all protocols, so its name carries none), and
           ``tabhelm:app:history`` for the log of leaders
Token:     ``app:resource[:scope]``

Every part matches ``[A-Za-z0-9][A-Za-z0-9._-]*``; a scope may hold further ``:``-joined parts (``user:123``).
Names appear in HTTP headers, database keys and support tickets: nothing that needs escaping is let in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from tabhelm.errors import InvalidName

Kind = Literal["leader", "mutation", "single-flight", "migration", "lifeline", "tab", "engine"]
KINDS: frozenset[str] = frozenset(get_args(Kind))
DATA_VERSION = 1
"""Version of the durable data. Locks that guard durable data carry it instead of the app's protocol (two protocols
that share the data must exclude each other)."""
MAX_NAME = 512
"""Characters that a token, a beacon or a header can carry as one name."""
QUEUE_RESOURCE = "offline-queue"
"""The resource of every offline queue; the queue's name is its scope."""

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_ALLOWED = "allowed are letters, digits, '.', '_' and '-', starting with a letter or digit"


def check_part(what: str, value: object) -> str:
    """Return ``value`` if it may be a part of a name.

    Raises:
        InvalidName: it is not a string or holds a character that is not allowed; the message names ``what``.
    """
    if not isinstance(value, str) or not _PART.match(value) or len(value) > MAX_NAME:
        raise InvalidName(f"{what} {_shown(value)} is not a valid name part: {_ALLOWED}")
    return value


def check_scope(value: object) -> str | None:
    """Return ``value`` if it may be a scope: ``None``, or one or more valid parts joined by ``:``."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_NAME or not all(_PART.match(part) for part in value.split(":")):
        raise InvalidName(f"scope {_shown(value)} is not valid: {_ALLOWED}; parts joined by ':'")
    return value


def check_joined(what: str, parts: Mapping[str, str | None]) -> None:
    """Check that these parts, joined by ``:``, fit into a token and a beacon.

    Raises:
        InvalidName: they do not; the message names the longest.
    """
    given = {name: part for name, part in parts.items() if part is not None}
    length = sum(len(part) for part in given.values()) + len(given) - 1
    if length > MAX_NAME:
        longest = max(given, key=lambda name: len(given[name]))
        raise InvalidName(
            f"{longest} {_shown(given[longest])} makes {what} {length} characters long; at most {MAX_NAME} are allowed"
        )


def unknown(what: str, key: str, known: Iterable[str]) -> str:
    """What to tell somebody who gave a key that is not among ``known``: the one that was perhaps meant, and all."""
    meant = nearest(key, known)
    if meant and key.endswith("Ms") and not meant.endswith("Ms"):
        meant += ", which is in seconds"
    asked = f"did you mean {meant}? Known" if meant else "known"
    return f"{what} {key!r} is unknown: {asked} are {', '.join(sorted(known))}"


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The one among ``known`` that is ``key`` otherwise written (``maxHoldMs``, ``max_hold``), or but for one slip.

    Not ``difflib``: it would be in every page's memory for the sake of a typing error.
    """
    plain = {_plain(name): name for name in sorted(known)}
    word = _plain(key)
    return plain.get(word) or next((name for other, name in plain.items() if _one_slip(word, other)), None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").removesuffix("ms")


def _one_slip(one: str, other: str) -> bool:
    """Whether they differ by one letter (too many, too few, another), or by two that changed places."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return max(len(one), len(other)) == 1 or (len(one) == 2 and one == other[::-1])


def check_protocol(value: object) -> int:
    """Return ``value`` if it may be a protocol version: a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**31:
        raise InvalidName(f"protocol {_shown(value)} is not valid: a whole number of at least 1 is expected")
    return value


@dataclass(frozen=True, slots=True)
class LockName:
    """A Web Lock's name in parts; ``str()`` builds it, ``parse`` takes it apart again."""

    app: str
    version: int
    kind: Kind
    resource: str
    scope: str | None = None

    def __post_init__(self) -> None:
        check_part("app", self.app)
        check_protocol(self.version)
        if self.kind not in KINDS:
            raise InvalidName(f"kind {_shown(self.kind)} is not one of {', '.join(sorted(KINDS))}")
        check_part("resource", self.resource)
        check_scope(self.scope)

    def __str__(self) -> str:
        tail = f":{self.scope}" if self.scope is not None else ""
        return f"{self.app}:v{self.version}:{self.kind}:{self.resource}{tail}"

    @classmethod
    def parse(cls, text: str) -> LockName:
        """Take a lock's name apart.

        Raises:
            InvalidName: the text is no such name; the message names the part.
        """
        parts = text.split(":", 4)
        if len(parts) < 4:
            raise InvalidName(f"lock name {_shown(text)} is not valid: app:vN:kind:resource[:scope] is expected")
        app, version, kind, resource = parts[:4]
        if not re.fullmatch(r"v[1-9][0-9]{0,9}", version):
            raise InvalidName(f"version {_shown(version)} of lock name {_shown(text)} is not valid: vN is expected")
        if kind not in KINDS:
            raise InvalidName(f"kind {_shown(kind)} of lock name {_shown(text)} is unknown")
        return cls(app, int(version[1:]), kind, resource, parts[4] if len(parts) == 5 else None)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Resource:
    """What is led: a resource of an app, optionally narrowed to a scope. Locks and tokens derive from it."""

    app: str
    name: str
    scope: str | None = None
    data_version: int | None = None
    """Set where the lock guards durable data: then the lock carries this version, not the app's protocol."""

    def __post_init__(self) -> None:
        check_part("app", self.app)
        check_part("resource", self.name)
        check_scope(self.scope)
        check_joined("the name in tokens", {"app": self.app, "resource": self.name, "scope": self.scope})

    @property
    def key(self) -> str:
        """The short name inside one app: ``resource[:scope]``."""
        return self.name if self.scope is None else f"{self.name}:{self.scope}"

    @property
    def token_resource(self) -> str:
        """The name in fencing tokens and epoch records: ``app:resource[:scope]``."""
        return f"{self.app}:{self.key}"

    def lock(self, protocol: int, kind: Kind = "leader") -> str:
        """The lock's full name under this protocol."""
        return str(LockName(self.app, self.data_version or protocol, kind, self.name, self.scope))


def queue_resource(app: str, queue: str, scope: str | None = None) -> Resource:
    """The resource of an offline queue: ``offline-queue`` with the queue's name (and the user's scope) as scope."""
    check_part("queue", queue)
    check_scope(scope)
    return Resource(app, QUEUE_RESOURCE, queue if scope is None else f"{queue}:{scope}", DATA_VERSION)


def is_queue(token_resource: str) -> bool:
    """Whether a token resource is an offline queue's: shared by all protocols of its app."""
    return token_resource.split(":")[1:2] == [QUEUE_RESOURCE]


def leader_lock(token_resource: str, protocol: int) -> str:
    """The name of the lock whose holder leads ``token_resource``: what ``Resource.lock`` gives."""
    app, _, key = token_resource.partition(":")
    return f"{app}:v{DATA_VERSION if is_queue(token_resource) else protocol}:leader:{key}"


def channel_name(app: str, protocol: int) -> str:
    """The BroadcastChannel of all tabs of an app that speak the same protocol."""
    return f"tabhelm:{check_part('app', app)}:v{check_protocol(protocol)}"


def queue_channel(app: str) -> str:
    """The BroadcastChannel of all tabs of an app that share its queues, whatever protocol they speak."""
    return f"tabhelm:{check_part('app', app)}:data-v{DATA_VERSION}"


def database_name(app: str) -> str:
    """The IndexedDB database of an app, shared by all its protocols and bundles."""
    return f"tabhelm:{check_part('app', app)}"


def history_database(app: str) -> str:
    """The IndexedDB database in which an app's tabs write down who led: apart, so that nothing waits for it."""
    return f"tabhelm:{check_part('app', app)}:history"


def lifeline_lock(app: str, protocol: int, tab_id: str, connection_id: str) -> str:
    """Held by a joined page; granted to the engine the moment the page is gone."""
    return str(LockName(app, protocol, "lifeline", tab_id, connection_id))


def tab_lock(app: str, protocol: int, tab_id: str) -> str:
    """Held by the page that owns a tab id: a duplicated tab, which copied the id, cannot get it."""
    return str(LockName(app, protocol, "tab", tab_id))


def engine_lock(app: str, protocol: int, engine_id: str) -> str:
    """Held by an engine while it lives; granted (shared) to its pages when it died."""
    return str(LockName(app, protocol, "engine", engine_id))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
