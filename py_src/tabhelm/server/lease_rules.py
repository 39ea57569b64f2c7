"""Who gets a lease: the rules alone, without a clock or a database.

The database's clock says when a lease ends, but it may be set. So a process that has seen a lease with its own eyes
also counts by its monotonic clock: a lease that it wrote itself ends by that alone, and one that it only saw ends no
later than its length after the first sight of it. Nothing of this is needed for safety, which is the epochs' matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from tabhelm.fencing.token import MAX_NUMBER
from tabhelm.server.lease_store import LeaseKey, LeaseRecord

_MOST_SIGHTS = 10_000


@dataclass(frozen=True, slots=True)
class Ask:
    """``ttl`` in seconds. ``above``: a receiver's mark; the epoch has to be higher. ``renew``: only if it is theirs."""

    candidate: str
    ttl: float
    above: int = 0
    renew: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """``how``: ``granted`` (it was free), ``taken-over`` (it had expired) or ``renewed``."""

    record: LeaseRecord
    how: str


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else has it, for ``left`` more seconds unless it is renewed. Nobody, if there is no ``holder``: then it
    was only to be renewed."""

    holder: str | None
    left: float


class Exhausted(Exception):
    """No epoch is left."""


def acquire(ask: Ask, record: LeaseRecord | None, now: float, left: float) -> Granted | Held:
    """``left``: the seconds for which the record's lease still holds (see ``Sights.left``).

    A holder that comes late, but before anybody took its lease, still has it: no token above its own was ever given.

    Raises:
        Exhausted: the next epoch would not fit into a token.
    """
    if ask.renew and (record is None or record.holder != ask.candidate):
        return Held(record.holder if record else None, max(0.0, left))
    if record is None:
        return Granted(_next(ask, 0, now), "granted")
    if record.holder == ask.candidate:
        if ask.above >= record.epoch:
            return Granted(_next(ask, record.epoch, now), "renewed")
        if record.seq >= MAX_NUMBER:
            raise Exhausted
        return Granted(replace(record, seq=record.seq + 1, ttl=ask.ttl, renewed_at=now), "renewed")
    if record.holder is None:
        return Granted(_next(ask, record.epoch, now), "granted")
    if left <= 0:
        return Granted(_next(ask, record.epoch, now), "taken-over")
    return Held(record.holder, left)


def release(candidate: str, record: LeaseRecord | None) -> LeaseRecord | None:
    """The record without its holder, if that is the candidate; else as it was."""
    if record is None or record.holder != candidate:
        return record
    return replace(record, holder=None)


def _next(ask: Ask, epoch: int, now: float) -> LeaseRecord:
    following = max(epoch, ask.above) + 1
    if following >= MAX_NUMBER:
        raise Exhausted
    return LeaseRecord(following, 1, ask.candidate, ask.ttl, now)


@dataclass(frozen=True, slots=True)
class _Sight:
    state: tuple[int, int]
    at: float
    own: bool


class Sights:
    """What one process saw of leases, by its own monotonic clock. The oldest are forgotten."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: OrderedDict[LeaseKey, _Sight] = OrderedDict()

    def left(self, key: LeaseKey, record: LeaseRecord | None, now: float) -> float:
        """For how many seconds the record's lease still holds; not above 0: it is over."""
        if record is None or record.holder is None:
            return 0.0
        # Never more than the whole of it: a clock that was set back does not make it longer.
        said = min(record.ttl, record.renewed_at + record.ttl - now)
        sight = self._seen.get(key)
        if sight is None or sight.state != (record.epoch, record.seq):
            return said
        left = sight.at + record.ttl - self._monotonic()
        return left if sight.own else min(said, left)

    def note(self, key: LeaseKey, record: LeaseRecord, *, own: bool) -> None:
        """The record is as it is by now. ``own``: this process has just written it."""
        state = (record.epoch, record.seq)
        known = self._seen.get(key)
        if known is None or known.state != state or own:
            self._seen[key] = _Sight(state, self._monotonic(), own)
        self._seen.move_to_end(key)
        if len(self._seen) > _MOST_SIGHTS:
            self._seen.popitem(last=False)
