"""The rule of a fenced receiver, without any storage: given the marks so far, may this token write?

The marks of one (subject, domain, resource) are the highest epoch seen, its owner, and, for each stream of that epoch,
the highest ``seq``. Raise them in one transaction with the effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tabhelm.fencing.token import FencingToken, HighWater


@dataclass(frozen=True, slots=True)
class Marks:
    """The highest epoch seen, who owns it, and how far each of its streams has come."""

    epoch: int
    owner_id: str
    streams: Mapping[str, int] = field(default_factory=dict)

    def high_water(self, stream: str) -> HighWater:
        """The mark that a token of this stream has to exceed."""
        return HighWater(self.epoch, self.streams.get(stream, 0), self.owner_id)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``accepted``: write ``marks`` with the effect. ``stale``: a newer owner was seen, for ever. ``overtaken``: a
    later token of the same owner was seen first; a new token will do."""

    kind: Literal["accepted", "stale", "overtaken"]
    marks: Marks | None = None
    high_water: HighWater | None = None


class StrictGuard:
    """Default: epoch and owner, then strictly growing ``seq`` within each stream."""

    def judge(self, marks: Marks | None, token: FencingToken) -> Verdict:
        """Compare a token with the marks so far (``None``: nothing was seen yet)."""
        if marks is None or self.newer(marks, token):
            return Verdict("accepted", Marks(token.epoch, token.owner_id, {token.stream: token.seq}))
        if not self.current(marks, token):
            return Verdict("stale", high_water=marks.high_water(token.stream))
        if not self.in_order(marks.streams.get(token.stream, 0), token):
            return Verdict("overtaken", high_water=marks.high_water(token.stream))
        seq = max(token.seq, marks.streams.get(token.stream, 0))
        return Verdict("accepted", Marks(marks.epoch, marks.owner_id, {**marks.streams, token.stream: seq}))

    def newer(self, marks: Marks, token: FencingToken) -> bool:
        """Whether the token begins a new epoch; the streams of the old one are forgotten."""
        return token.epoch > marks.epoch

    def current(self, marks: Marks, token: FencingToken) -> bool:
        """Whether the token is of the epoch and owner in force."""
        return token.epoch == marks.epoch and token.owner_id == marks.owner_id

    def in_order(self, seen: int, token: FencingToken) -> bool:
        """Whether the token is above what its stream has shown."""
        return token.seq > seen


class EpochGuard(StrictGuard):
    """Opt-in, for receivers that get unordered parallel writes: the epoch and owner rule alone.

    Then every operation needs an idempotency key: a repeated write is not refused by its token.
    """

    def in_order(self, seen: int, token: FencingToken) -> bool:
        return True
