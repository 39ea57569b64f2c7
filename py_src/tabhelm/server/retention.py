"""Forgetting operation ids in time: in small transactions between the requests, after their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tabhelm.server.logs import log
from tabhelm.server.store import FenceStore, FenceTransaction, StoreBusy

STEP = 500
"""Decisions deleted in one transaction: some milliseconds, for which one request may have to wait."""


class Sweeper:
    """Every decision that is remembered pays for the deletion of two that have expired: the table cannot grow for ever.
    The first write owes a whole step: processes that end before they have decided much leave no debts behind.

    ``clock`` gives seconds since 1970.
    """

    def __init__(self, store: FenceStore[Any], clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._owed = 0
        self._first = STEP

    def owe(self, decisions: int) -> None:
        """A write has been committed, and so many decisions with it."""
        self._owed += 2 * decisions + self._first
        self._first = 0

    async def sweep(self) -> None:
        """Pay what is owed, once it is worth a transaction. Call it after an answer; it does not raise."""
        try:
            while self._owed >= STEP:
                self._owed -= STEP
                if await self._store.run(self._step) < STEP:
                    self._owed = 0  # no more has expired
        except StoreBusy:
            self._owed += STEP
        except Exception:
            log.exception("expired operation ids could not be deleted")

    def _step(self, transaction: FenceTransaction[Any]) -> int:
        return transaction.forget(self._clock(), STEP)
