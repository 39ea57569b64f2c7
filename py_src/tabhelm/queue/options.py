"""How a queue is filled and emptied: one frozen object, with the same keys in Python and in JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tabhelm.app_headers import HeaderSource, checked
from tabhelm.errors import InvalidOptions
from tabhelm.json_text import is_number
from tabhelm.names import unknown
from tabhelm.queue.sending import Sender

Mode = Literal["batch", "single"]
Rejected = Literal["dead", "block"]
Payloads = Literal["json", "clone"]
MAX_LANES = 16
MAX_BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """All times in seconds (in JavaScript the same keys in milliseconds: ``sendTimeoutMs``).

    Raises:
        InvalidOptions: a value of a wrong type or range, or values that contradict each other; names the key.
    """

    endpoint: str | None = None
    """URL of a fenced receiver (docs/receiver.md) that operations are sent to."""
    sender: Sender | Callable[..., Any] | None = None
    """The app's own way of sending, instead of HTTP: ``async def send(operation, sending)``, or ``BatchSender(send)``
    for ``async def send(operations, sending)``."""
    mode: Mode = "batch"
    """HTTP requests: ``batch`` sends many operations in one, ``single`` one in each, with an ``Idempotency-Key``."""
    batch: int = 100
    """Most operations in one claim, and in one request."""
    lanes: int = 1
    """How many batches of different partitions may be on their way at once, each with a token stream of its own."""
    send_timeout: float = 30.0
    """How long one send may take."""
    rejected: Rejected = "dead"
    """What becomes of the partition of an operation that is dead: ``dead`` lets it go on with the next one, ``block``
    keeps it until the operation is retried or removed."""
    max_attempts: int = 20
    """After so many failed attempts an operation is dead."""
    base_delay: float = 0.5
    """Wait after an operation's first failure; doubles with each, with jitter."""
    max_delay: float = 60.0
    max_operations: int | None = None
    """Most operations that this tab lets the queue hold: queued, in flight and dead. ``None``: no limit."""
    max_bytes: int | None = None
    """The same for the bytes of their payloads."""
    headers: HeaderSource | None = None
    """More HTTP headers, such as the app's own bearer token: a mapping, or a function that gives one (it may be async)
    and is asked before each request."""
    payloads: Payloads | None = None
    """``json``: a payload is what JSON can hold. ``clone``: whatever structured clone takes; only for an own sender,
    and the default with one."""

    def __post_init__(self) -> None:
        if self.endpoint is not None and not (isinstance(self.endpoint, str) and self.endpoint):
            raise _wrong("endpoint", self.endpoint, "the URL of a fenced receiver")
        if self.sender is not None and not callable(self.sender) and not hasattr(self.sender, "send"):
            raise _wrong("sender", self.sender, "an async function of an operation, or a BatchSender")
        _one_of("mode", self.mode, get_args(Mode))
        _one_of("rejected", self.rejected, get_args(Rejected))
        _whole("batch", self.batch, MAX_BATCH)
        _whole("lanes", self.lanes, MAX_LANES)
        _whole("max_attempts", self.max_attempts)
        for key in ("max_operations", "max_bytes"):
            if getattr(self, key) is not None:
                _whole(key, getattr(self, key))
        for key in ("send_timeout", "base_delay", "max_delay"):
            _time(key, getattr(self, key))
        if self.max_delay < self.base_delay:
            raise InvalidOptions(f"max_delay {self.max_delay:g} s is shorter than base_delay {self.base_delay:g} s")
        if self.payloads is None:
            object.__setattr__(self, "payloads", "json" if self.sender is None else "clone")
        _one_of("payloads", self.payloads, get_args(Payloads))
        if self.payloads == "clone" and self.endpoint is not None and self.sender is None:
            raise InvalidOptions("payloads 'clone' needs a sender of your own: over HTTP a payload is JSON")
        if self.headers is not None and not callable(self.headers):
            checked(self.headers, "headers")

    @classmethod
    def from_wire(cls, value: Mapping[str, Any], **own: Any) -> QueueOptions:
        """Build options from a page's object: camelCase keys, times in milliseconds with the suffix ``Ms``. ``own``
        adds what no message carries (``sender``, ``headers``), under Python's names.

        Raises:
            InvalidOptions: an unknown key, or a value that is not allowed; names the key as the page wrote it.
        """
        for key in value:
            if key not in _WIRE:
                raise InvalidOptions(unknown("queue option", key, _WIRE))
        known: dict[str, Any] = {}
        for key, item in value.items():
            if item is None:
                continue
            name = _WIRE[key]
            if name in _TIMES:
                _time(key, item, "milliseconds")
                item = item / 1000
            known[name] = item
        try:
            return cls(**(known | own))
        except InvalidOptions as error:
            raise InvalidOptions(_in_page_words(str(error))) from None


def options_from(given: QueueOptions | None, settings: Mapping[str, Any]) -> QueueOptions:
    """Options as one object or as keyword arguments.

    Raises:
        InvalidOptions: both, an unknown key, or a value that is not allowed.
    """
    if given is not None and settings:
        raise InvalidOptions(f"queue option {min(settings)!r} is given beside options: put it into them")
    known = {field.name for field in fields(QueueOptions)}
    for key in settings:
        if key not in known:
            raise InvalidOptions(unknown("queue option", key, known | _BESIDE))
    return given or QueueOptions(**settings)


def _wrong(key: str, value: object, expected: str) -> InvalidOptions:
    return InvalidOptions(f"{key} {value!r:.60} is not valid: {expected} is expected")


def _one_of(key: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise _wrong(key, value, " or ".join(map(repr, words)))


def _whole(key: str, value: object, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        raise _wrong(key, value, f"a whole number of 1 to {most}" if most else "a whole number of at least 1")


def _time(key: str, value: object, unit: str = "seconds") -> None:
    if not is_number(value) or value <= 0:
        raise _wrong(key, value, f"a positive number of {unit}")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


_TIMES = {"send_timeout", "base_delay", "max_delay"}
_FUNCTIONS = {"sender"}
_BESIDE = {"flush", "loop", "policy", "scope"}
"""What ``tab.queue`` takes beside these options: who does not find it there looks for it here."""
_WIRE = {
    _camel(field.name) + ("Ms" if field.name in _TIMES else ""): field.name
    for field in fields(QueueOptions)
    if field.name not in _FUNCTIONS
}


def _in_page_words(text: str) -> str:
    for wire, name in _WIRE.items():
        if wire != name and name in text:
            text = text.replace(name, wire)
    return text
