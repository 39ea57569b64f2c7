"""What a fenced receiver asks of a database: one transaction that holds marks, known operations and the effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

from tabhelm.errors import TabhelmError
from tabhelm.fencing.guard import Marks

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")


class StoreBusy(TabhelmError):
    """The database could not take the transaction now; nothing was written. Answered as 503.

    ``unsure``: the connection was lost during the commit, so that it may have been written all the same.
    """

    code = "store-busy"

    def __init__(self, message: str, *, unsure: bool = False) -> None:
        super().__init__(message)
        self.unsure = unsure


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
        """The marks so far. Of the streams, at least ``stream`` is in it if it has a mark.

        From here to the end of the transaction, every other transaction that asks for the marks of ``key`` waits.
        """
        ...

    def raise_marks(self, key: Key, before: Marks | None, after: Marks, stream: str) -> None:
        """Write the marks that the guard gave; a new epoch forgets the old one's streams."""
        ...

    def known(self, subject: str, op_ids: Sequence[str]) -> dict[str, Known]:
        """The decisions on those of these operations that were seen before."""
        ...

    def remember(self, subject: str, decisions: Mapping[str, Known]) -> None:
        """Write decisions down, by operation id."""
        ...

    def newest(self) -> float:
        """When the last of all decisions expires (seconds since 1970); ``0.0`` if there is none."""
        ...

    def forget(self, before: float, limit: int) -> int:
        """Delete at most ``limit`` decisions that expired before that time (seconds since 1970); how many there were.

        Those that another transaction is about to delete may be passed over.
        """
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
        """Run ``work`` in one write transaction, off the event loop; commit when it returns.

        Transactions of one resource come one after the other (``marks``); those of different ones may run at once.
        ``work`` may be run again after its transaction was rolled back.

        Raises:
            StoreBusy: the database could not take it now.
        """
        ...

    async def close(self) -> None:
        """Finish what runs and close the connections. The next ``run`` opens them again."""
        ...
