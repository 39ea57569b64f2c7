"""Reading a page's messages. Pages run code that we do not control: every field is checked, and named when it is
wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from tabhelm.errors import MalformedMessage
from tabhelm.json_text import is_number
from tabhelm.ports import PageState
from tabhelm.ports.database import Opaque
from tabhelm.ports.lifecycle import LIFECYCLES, Lifecycle

T = TypeVar("T")
Message = Mapping[str, Any]


class Post(Protocol):
    """Send the page a message. ``values`` go beside it, as they are: those of an answer arrive in its result."""

    def __call__(self, message: dict[str, Any], values: Sequence[Opaque] = ()) -> None: ...


def field(message: Message, name: str, kind: type[T], default: T | None = None) -> T:
    """The field ``name``, which must be of type ``kind``; ``default`` (if given) where it is missing."""
    value = message.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        shown = repr(value)[:80]
        raise MalformedMessage(f"{message.get('type')!r} message: field {name!r} is {shown}, expected {kind.__name__}")
    return value


def milliseconds(message: Message, name: str, default: float) -> float:
    """A positive number of milliseconds, in seconds; ``default`` (seconds) where it is missing."""
    value = message.get(name)
    if value is None:
        return default
    if not is_number(value) or value <= 0:
        raise MalformedMessage(f"{name} {value!r:.60} is not valid: a positive number of milliseconds is expected")
    return value / 1000


def optional_text(message: Message, name: str) -> str | None:
    """A text field that may be missing or null."""
    return None if message.get(name) is None else field(message, name, str)


def words(message: Message, name: str) -> list[str]:
    """A list of texts; empty where it is missing."""
    value: list[Any] = field(message, name, list, [])
    if not all(isinstance(item, str) for item in value):
        raise MalformedMessage(f"{message.get('type')!r} message: field {name!r} must be a list of texts")
    return value


def page_state(message: Message) -> PageState:
    """Lifecycle, visibility and network as the page says."""
    lifecycle = field(message, "lifecycle", str, "unknown")
    known = cast(Lifecycle, lifecycle) if lifecycle in LIFECYCLES else "unknown"
    return PageState(known, field(message, "visible", bool, True), field(message, "online", bool, True))
