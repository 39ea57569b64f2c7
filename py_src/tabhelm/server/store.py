"""What a fenced receiver asks of a database: one transaction that holds marks, known operations and the effect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

from tabhelm.errors import TabhelmError
from tabhelm.fencing.guard import Marks

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")


class StoreBusy(TabhelmError):
    """The database could not take the transaction now; nothing was written. Answered as 503."""

    code = "store-busy"


class TransactionBroken(TabhelmError):
    """The transaction was rolled back under the receiver by a statement of ``apply``. Answered as 500."""

    code = "transaction-broken"


class Key(NamedTuple):
    """What the marks belong to."""

    subject: str
    domain: str
    resource: str


@dataclass(frozen=True, slots=True)
class Known:
    """An operation that was decided on. ``expires_at`` in seconds since 1970: it may be forgotten then."""

    digest: bytes
    status: Literal["committed", "rejected"]
    detail: str
    expires_at: float


class FenceTransaction(Protocol[T_co]):
    """One open write transaction. Everything here and the effects become visible together, or never."""

    @property
    def application(self) -> T_co:
        """What ``apply`` gets, to write its effect with (for SQLite, the connection)."""
        ...

    def marks(self, key: Key, stream: str) -> Marks | None:
        """The marks so far. Of the streams, at least ``stream`` is in it if it has a mark."""
        ...

    def raise_marks(self, key: Key, before: Marks | None, after: Marks, stream: str) -> None:
        """Write the marks that the guard gave; a new epoch forgets the old one's streams."""
        ...

    def known(self, subject: str, op_id: str) -> Known | None:
        """The decision on this operation, if it was seen before."""
        ...

    def remember(self, subject: str, op_id: str, known: Known) -> None:
        """Write a decision down."""
        ...

    def forget(self, before: float, limit: int) -> None:
        """Delete at most ``limit`` decisions that expired before that time (seconds since 1970)."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """What is written inside is undone if the block raises.

        Raises:
            TransactionBroken: a statement of the block rolled the whole transaction back.
            StoreBusy: the database rolled it back (disk full, for instance).
        """
        ...


class FenceStore(Protocol[T_co]):
    """Where a receiver keeps its marks, in the same database as the effects."""

    async def run(self, work: Callable[[FenceTransaction[T_co]], R]) -> R:
        """Run ``work`` in one serialised write transaction, off the event loop; commit when it returns.

        Raises:
            StoreBusy: the database could not take it now.
        """
        ...

    async def close(self) -> None:
        """Finish what runs and close the connections."""
        ...
