"""Operations as they are stored. Payloads stay JSON text from ``enqueue`` to the request body, or values that the
database carries as they are: looked into by nobody between.

An operation is *live* (queued, or in flight while a claim names it) or *dead* (needs a person). Committed ones leave
the queue; a receipt stays for a while, so that the same id enqueued again is recognised.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from tabhelm.errors import InvalidPayload
from tabhelm.json_text import MAX_DEPTH, deeper_than, is_number, loads
from tabhelm.ports import Clock, Entropy
from tabhelm.ports.database import Opaque

MAX_IDENTIFIER = 200
MAX_PARTITION = 200
DEFAULT_PARTITION = "default"
MAX_WAIT = 30 * 86_400.0
"""Seconds that a sender may have an operation wait."""
MAX_PAYLOAD_DEPTH = MAX_DEPTH - 10
"""A request nests the payload a little deeper, and a receiver reads no more than ``MAX_DEPTH`` levels."""


@dataclass(frozen=True, slots=True)
class Item:
    """One of many operations that are enqueued together (``Queue.enqueue_many``)."""

    payload: Any
    """As ``Queue.enqueue`` takes it."""
    partition: str | None = None
    """``None``: that of the call."""
    op_id: str | None = None
    """``None``: drawn."""


@dataclass(frozen=True, slots=True)
class NewOperation:
    """An operation as it is to be stored: JSON text as ``payload``, or any other ``value`` with its digest and size in
    bytes. ``fresh`` says that the id was drawn for this very call."""

    op_id: str
    payload: str = ""
    partition: str = DEFAULT_PARTITION
    fresh: bool = False
    value: Opaque | None = None
    value_digest: str = ""
    value_size: int = 0
    digest: str = field(default="", init=False)
    """What must be equal for two operations of one id to be the same. Taken here, for it takes time that no transaction
    should have to wait."""

    def __post_init__(self) -> None:
        _check_label("operation id", self.op_id, MAX_IDENTIFIER)
        _check_label("partition", self.partition, MAX_PARTITION)
        if self.value is not None:
            _check_value(self)
        else:
            self._check_payload()
        what = self.payload if self.value is None else f"clone\0{self.value_digest}"
        digest = hashlib.sha256(f"{self.partition}\0{what}".encode()).hexdigest()[:32]
        object.__setattr__(self, "digest", digest)

    def _check_payload(self) -> None:
        if not isinstance(self.payload, str) or not self.payload:
            raise InvalidPayload(f"payload of operation {self.op_id!r} is not JSON text: {type(self.payload).__name__}")
        if deeper_than(self.payload, MAX_PAYLOAD_DEPTH):
            raise InvalidPayload(
                f"payload of operation {self.op_id!r} is nested deeper than {MAX_PAYLOAD_DEPTH} levels: "
                "no receiver would read it"
            )

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return self.value_size if self.value is not None else text_size(self.payload)

    def to_record(self, queue: str, ordinal: int, now: float) -> dict[str, Any]:
        """The record to store: that of a new ``Operation``."""
        record = {
            "queue": queue,
            "op_id": self.op_id,
            "partition": self.partition,
            "payload": self.payload,
            "digest": self.digest,
            "enqueued_at": now,
            "ordinal": ordinal,
        }
        if self.value is not None:
            record |= {"value": self.value, "value_size": self.value_size}
        return record


@dataclass(frozen=True, slots=True)
class Operation:
    """One stored operation. Wall-clock seconds are for ages and display."""

    queue: str
    op_id: str
    partition: str
    payload: str
    """JSON text; empty if there is a ``value``."""
    digest: str
    enqueued_at: float
    ordinal: int = 0
    """Order of enqueueing, from 1."""
    attempts: int = 0
    """How often an attempt failed: the receiver said ``retry``, or the sender raised."""
    not_before: float = 0.0
    delayed_at: float = 0.0
    """When ``not_before`` was set: a clock that shows less has been set back, and the wait is over."""
    unknown_since: float = 0.0
    """The claim under which it was first sent without learning the outcome; 0 if never."""
    reason: str = ""
    """Why it is dead, or what the last attempt said."""
    died_at: float = 0.0
    value: Opaque | None = None
    """The payload, where it is no JSON text."""
    value_size: int = 0
    blocks: bool = False
    """It is dead, and its partition waits until it is retried or removed."""

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Operation:
        """Read a stored record; fields that a newer version added are ignored."""
        return cls(**{name: value for name, value in record.items() if name in _FIELDS})

    def to_record(self) -> dict[str, Any]:
        """The record to store: what is as it always is at first is left out."""
        return {
            name: value for name, default in _DEFAULTS if (value := getattr(self, name)) != default or name in _ALWAYS
        }

    def changed(self, **fields: Any) -> Operation:
        return replace(self, **fields)

    @property
    def place(self) -> list[Any]:
        """Its key in the line: queue, partition, ordinal."""
        return [self.queue, self.partition, self.ordinal]

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return self.value_size if self.value is not None else text_size(self.payload)

    @property
    def content(self) -> Any:
        """The payload as Python data."""
        return self.value.python() if self.value is not None else loads(self.payload)


_ALWAYS = frozenset({"queue", "op_id", "partition", "payload", "digest", "enqueued_at", "ordinal"})
_DEFAULTS = tuple((field.name, field.default) for field in fields(Operation))
_FIELDS = frozenset(name for name, _ in _DEFAULTS)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts as of one transaction. ``oldest_age`` is the seconds since the oldest one that is not done came (wall
    clock), ``bytes`` those of all payloads, dead ones included, ``blocked`` the partitions that wait for a person, and
    ``rate`` the operations done in a second, over the last ten, by whomever."""

    queued: int
    in_flight: int
    done: int
    dead: int
    oldest_age: float | None
    bytes: int = 0
    blocked: int = 0
    rate: float = 0.0


SAID = ("committed", "duplicate", "rejected", "retry", "skipped")
"""What a sender may say of an operation."""
Status = Literal["committed", "duplicate", "rejected", "retry", "skipped", "unknown", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sent operation. A sender says ``committed``, ``duplicate`` (counts as committed), ``rejected``
    for good, ``retry`` later (``retry_after``: in seconds, at least), or ``skipped`` (an earlier one of its partition
    did not commit). ``unknown`` (no believable answer) and ``failed`` (it raised) are found out here."""

    op_id: str
    status: Status
    detail: str = ""
    retry_after: float | None = None

    def __post_init__(self) -> None:
        if self.status not in _STATUSES:
            raise ValueError(f"outcome {self.status!r:.40} is not one of {', '.join(_STATUSES)}")
        wait = self.retry_after
        if wait is not None and not (is_number(wait) and 0 <= wait <= MAX_WAIT):
            # A point in time, say, in the place of a duration: its partition would wait for decades.
            raise ValueError(f"retry_after {wait!r:.40} is not a number of seconds up to {MAX_WAIT:g} (30 days)")

    @classmethod
    def committed(cls) -> Outcome:
        """It was applied."""
        return cls("", "committed")

    @classmethod
    def duplicate(cls) -> Outcome:
        """It had been applied before."""
        return cls("", "duplicate")

    @classmethod
    def rejected(cls, detail: str = "") -> Outcome:
        """It will never be applied, and why."""
        return cls("", "rejected", detail)

    @classmethod
    def retry(cls, after: float | None = None, detail: str = "") -> Outcome:
        """It was not applied, and may be later: after so many seconds at least."""
        return cls("", "retry", detail, after)

    @classmethod
    def skipped(cls) -> Outcome:
        """It was not tried."""
        return cls("", "skipped")

    @classmethod
    def of(cls, answer: Outcome | str | None) -> Outcome:
        """What a sender's function returned.

        Raises:
            ValueError: none of what it may return.
        """
        if isinstance(answer, Outcome):
            return answer
        if answer is None:
            return cls("", "committed")
        if isinstance(answer, str) and answer in SAID:
            return cls("", answer)  # type: ignore[arg-type]
        raise ValueError(f"a sender returned {answer!r:.60}: an Outcome, one of its words, or None is expected")

    @property
    def done(self) -> bool:
        """Whether it is applied, now or before."""
        return self.status in ("committed", "duplicate")

    def goes_on(self, rejected: str) -> bool:
        """Whether the next operation of its partition may follow, under an option ``rejected``."""
        return self.done or (self.status == "rejected" and rejected == "dead")

    def named(self, op_id: str) -> Outcome:
        return self if self.op_id == op_id else replace(self, op_id=op_id)


_UUID7 = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_STATUSES: tuple[str, ...] = get_args(Status)


def draw_operation_id(clock: Clock, entropy: Entropy) -> str:
    """A new operation id: UUIDv7 (RFC 9562): sortable by when it was drawn, unique by 74 random bits."""
    millis = int(clock.wall() * 1000) & (2**48 - 1)
    random = int.from_bytes(entropy.token_bytes(10), "big")
    value = millis << 80 | 0x7 << 76 | (random >> 68 & 0xFFF) << 64 | 0b10 << 62 | random & (2**62 - 1)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def drawn_at(op_id: str) -> float:
    """When a UUIDv7 was drawn, in seconds since 1970; 0 if it is none."""
    return int(op_id[:8] + op_id[9:13], 16) / 1000 if _UUID7.fullmatch(op_id) else 0.0


def text_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _check_value(operation: NewOperation) -> None:
    digest, size = operation.value_digest, operation.value_size
    if operation.payload:
        raise InvalidPayload(f"operation {operation.op_id!r} has both a payload text and a value: leave one out")
    if not isinstance(digest, str) or not digest or len(digest) > 128 or not digest.isascii():
        raise InvalidPayload(f"the digest of the value of operation {operation.op_id!r} is not valid: {digest!r:.60}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidPayload(f"the size of the value of operation {operation.op_id!r} is not valid: {size!r:.60}")


def _check_label(what: str, value: object, most: int) -> None:
    if not isinstance(value, str) or not value or len(value) > most or not value.isprintable() or not value.isascii():
        shown = repr(value)[:80]
        raise InvalidPayload(f"{what} {shown} is not valid: 1 to {most} printable ASCII characters are expected")
