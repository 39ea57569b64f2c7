"""When a leader that holds its lock in silence is replaced by force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tabhelm.errors import InvalidPolicy
from tabhelm.json_text import is_number

LEAST = 10.0
"""Seconds: two beats of a leader. Who has not heard it for less has proved nothing."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """Whether a leader that gives no sign of life, but still holds its lock, is replaced by force.

    ``Takeover.fenced(after=60.0)``: by the standby, after so many seconds of its own clock; the late writes of the old
    leader are refused. Only where the authority is fenced: elsewhere it means never. ``Takeover.never``: wait.

    Raises:
        InvalidPolicy: not a number of at least ``LEAST`` seconds.
    """

    after: float | None = 60.0

    never: ClassVar[Takeover]

    def __post_init__(self) -> None:
        if self.after is not None and not _enough(self.after):
            raise InvalidPolicy(f"takeover after {self.after!r} is not valid: at least {LEAST:g} seconds are expected")

    @classmethod
    def fenced(cls, after: float = 60.0) -> Takeover:
        """Take over after so many seconds without a sign of life."""
        return cls(after)

    @classmethod
    def from_wire(cls, key: str, value: Any) -> Takeover:
        """From a page's policy: milliseconds, or ``"never"``."""
        if value == "never":
            return cls.never
        if not is_number(value) or not _enough(value / 1000):
            raise InvalidPolicy(
                f'{key} {value!r:.60} is not valid: at least {LEAST * 1000:g} milliseconds, or "never", are expected'
            )
        return cls(value / 1000)


def _enough(value: object) -> bool:
    return is_number(value) and value >= LEAST


Takeover.never = Takeover(None)
