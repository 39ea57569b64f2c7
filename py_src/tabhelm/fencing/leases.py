"""The durable record of a lease, beside the epochs in the same store: one transaction decides about both.

A lease is renewed by its holder. ``renewal`` grows with every write of the record, whoever makes it: who sees the
record twice with the same number knows that nobody renewed it meanwhile. No time in it is ever compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from tabhelm.fencing.schema import FENCING
from tabhelm.ports import Clock, Transaction

LEASE = "indexeddb-lease"
"""The authority, as epoch records name it."""
LONGEST_GAP = 5.0
"""Seconds between two looks that count at most: a clock that leapt proves nothing about what happened meanwhile."""
LONGEST_LEASE = 600.0
"""Seconds that are believed of a record: a longer one must not keep a resource from everybody."""


@dataclass(frozen=True, slots=True)
class Lease:
    """``hold`` is drawn anew at each acquisition, so that two holds of one owner are told apart."""

    owner_id: str
    hold: str
    renewal: int
    seconds: float
    """So long after its last renewal its holder may still believe in it."""
    released: bool


def lease_key(lock_name: str) -> str:
    """The key of a lease. It is named as the lock is whose place it takes: apart for each protocol."""
    return f"lease:{lock_name}"


async def read_lease(tx: Transaction, lock_name: str) -> Lease | None:
    """The lease as this transaction sees it; ``None`` if there is none (never acquired, or wiped)."""
    record = await tx.get(FENCING, lease_key(lock_name))
    if record is None:
        return None
    seconds = min(float(record["lease_ms"]) / 1000, LONGEST_LEASE)
    return Lease(record["owner"], record["hold"], record["renewal"], seconds, record["released"])


async def write_lease(tx: Transaction, lock_name: str, lease: Lease, clock: Clock) -> None:
    """Write it. ``renewed_at`` is for people who look at the store."""
    await tx.put(
        FENCING,
        {
            "key": lease_key(lock_name),
            "owner": lease.owner_id,
            "hold": lease.hold,
            "renewal": lease.renewal,
            "lease_ms": round(lease.seconds * 1000),
            "released": lease.released,
            "renewed_at": clock.wall(),
        },
    )


class Stillness:
    """For how long an observer has seen something unchanged, by its own clock and between its own looks alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: object = self
        self._at = clock.monotonic()
        self._still = 0.0

    @property
    def unseen(self) -> float:
        """Seconds since the last look."""
        return self._clock.monotonic() - self._at

    def look(self, seen: object, longest_gap: float = LONGEST_GAP) -> float:
        """Seconds for which ``seen`` is known to be as it is. Call it when it was just read.

        Of the time since the last look, ``longest_gap`` seconds count at most.
        """
        now = self._clock.monotonic()
        if seen != self._seen:
            self._seen, self._still = seen, 0.0
        else:
            self._still += min(now - self._at, longest_gap)
        self._at = now
        return self._still
