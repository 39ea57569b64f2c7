"""What a lease service asks of a database: one record for each lease, changed in one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tabhelm.errors import TabhelmError
from tabhelm.server.store import R


class TooManyLeases(TabhelmError):
    """This subject has as many leases as it may; nothing was written."""

    code = "too-many-leases"


class LeaseKey(NamedTuple):
    """Leases of two subjects never meet."""

    subject: str
    resource: str


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the database keeps of a lease, for ever: its epoch must never come again.

    ``holder`` is ``None`` once it was given back. ``ttl`` in seconds; ``renewed_at`` in seconds since 1970, by the
    store's clock.
    """

    epoch: int
    seq: int
    holder: str | None
    ttl: float
    renewed_at: float


Decide = Callable[[LeaseRecord | None, float], tuple[LeaseRecord | None, R]]
"""``decide(record, now)``: what the record becomes (the same: nothing is written), and what to return. ``now`` is the
store's clock. It may be called more than once for one change, and only the last call counts: it must have no effects of
its own."""


class LeaseStore(Protocol):
    """Where leases are kept. A store may lock the record, or compare and set it (etcd) and decide again."""

    async def domain(self) -> str:
        """A random id of this database, drawn once: epochs of two databases are never compared.

        Raises:
            StoreBusy: the database cannot be asked now.
        """
        ...

    async def change(self, key: LeaseKey, decide: Decide[R], most: int) -> R:
        """Change one record in one step: no other change of it comes between reading and writing. When it returns, the
        change is durable. Never creates more than ``most`` records of one subject.

        Raises:
            StoreBusy: the database could not take it now; nothing was written.
            TooManyLeases: the subject has so many already.
        """
        ...

    async def close(self) -> None:
        """Finish what runs and close the connections. The next call opens them again."""
        ...
