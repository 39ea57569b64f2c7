"""Operations as they are stored. Payloads stay JSON text from ``enqueue`` to the request body: parsed by nobody
between.

An operation is *queued* (may be claimed), *in-flight* (claimed under an epoch) or *dead* (needs a person). Committed
ones leave the queue; a receipt stays for a while, so that the same id enqueued again is recognised.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tabhelm.errors import InvalidPayload
from tabhelm.json_text import MAX_DEPTH, deeper_than
from tabhelm.ports import Clock, Entropy

OperationState = Literal["queued", "in-flight", "dead"]
MAX_IDENTIFIER = 200
MAX_PARTITION = 200
DEFAULT_PARTITION = "default"
MAX_PAYLOAD_DEPTH = MAX_DEPTH - 10
"""A request nests the payload a little deeper, and a receiver reads no more than ``MAX_DEPTH`` levels."""


@dataclass(frozen=True, slots=True)
class NewOperation:
    """What a caller enqueues. ``payload`` is JSON text; ``fresh`` says that the id was drawn for this very call."""

    op_id: str
    payload: str
    partition: str = DEFAULT_PARTITION
    fresh: bool = False

    def __post_init__(self) -> None:
        _check_label("operation id", self.op_id, MAX_IDENTIFIER)
        _check_label("partition", self.partition, MAX_PARTITION)
        if not isinstance(self.payload, str) or not self.payload:
            raise InvalidPayload(f"payload of operation {self.op_id!r} is not JSON text: {type(self.payload).__name__}")
        if deeper_than(self.payload, MAX_PAYLOAD_DEPTH):
            raise InvalidPayload(
                f"payload of operation {self.op_id!r} is nested deeper than {MAX_PAYLOAD_DEPTH} levels: "
                "no receiver would read it"
            )

    def digest(self) -> str:
        """What must be equal for two operations of one id to be the same."""
        return hashlib.sha256(f"{self.partition}\0{self.payload}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Operation:
    """One stored operation. Wall-clock seconds are for ages and display."""

    queue: str
    op_id: str
    partition: str
    payload: str
    digest: str
    state: OperationState
    enqueued_at: float
    attempts: int = 0
    """How often the receiver said ``retry``."""
    not_before: float = 0.0
    delayed_at: float = 0.0
    """When ``not_before`` was set: a clock that shows less has been set back, and the wait is over."""
    epoch: int = 0
    """The epoch of the claim, while in flight."""
    claimed_at: float = 0.0
    """When it was last claimed, while in flight: it may have been sent, and applied, from then on."""
    unknown_since: float = 0.0
    """The claim under which it was first sent without learning the outcome; 0 if never."""
    reason: str = ""
    """Why it is dead, or what the last attempt said."""
    ordinal: int = 0
    """Order of enqueueing, given by the store."""

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Operation:
        """Read a stored record; fields that a newer version added are ignored."""
        return cls(**{name: record[name] for name in cls.__slots__ if name in record})

    def to_record(self) -> dict[str, Any]:
        """The record to store; without an ordinal the store gives one."""
        record = asdict(self)
        if not self.ordinal:
            del record["ordinal"]
        return record

    def changed(self, **fields: Any) -> Operation:
        return replace(self, **fields)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts as of one transaction. ``oldest_age`` is the seconds since the oldest queued one came (wall clock)."""

    queued: int
    in_flight: int
    done: int
    dead: int
    oldest_age: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sent operation.

    ``committed`` (also for a duplicate), ``rejected`` for good, ``retry`` later, ``skipped`` (an earlier one of its
    partition did not commit), ``unknown`` (no believable answer).
    """

    op_id: str
    status: Literal["committed", "rejected", "retry", "skipped", "unknown"]
    detail: str = ""
    retry_after: float | None = None


def draw_operation_id(clock: Clock, entropy: Entropy) -> str:
    """A new operation id: UUIDv7 (RFC 9562): sortable by when it was drawn, unique by 74 random bits."""
    millis = int(clock.wall() * 1000) & (2**48 - 1)
    random = int.from_bytes(entropy.token_bytes(10), "big")
    value = millis << 80 | 0x7 << 76 | (random >> 68 & 0xFFF) << 64 | 0b10 << 62 | random & (2**62 - 1)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _check_label(what: str, value: object, most: int) -> None:
    if not isinstance(value, str) or not value or len(value) > most or not value.isprintable() or not value.isascii():
        shown = repr(value)[:80]
        raise InvalidPayload(f"{what} {shown} is not valid: 1 to {most} printable ASCII characters are expected")
