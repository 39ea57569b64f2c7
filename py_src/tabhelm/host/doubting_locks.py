"""Locks that a page does not believe in after it stood still, whatever the browser still says."""

from __future__ import annotations

from collections.abc import Callable

from tabhelm.ports import HeldLock, LockEnd, Locks, LockSnapshot
from tabhelm.ports.locks import LockMode


class _DoubtingLock:
    """``stood_still`` says whether the page did, and has not gone on yet."""

    def __init__(self, lock: HeldLock, stood_still: Callable[[], bool]) -> None:
        self._lock = lock
        self._stood_still = stood_still

    @property
    def name(self) -> str:
        return self._lock.name

    @property
    def held(self) -> bool:
        return not self._stood_still() and self._lock.held

    @property
    def ended(self) -> LockEnd | None:
        return self._lock.ended

    def release(self) -> None:
        self._lock.release()

    def on_end(self, callback: Callable[[LockEnd], None]) -> None:
        self._lock.on_end(callback)


class DoubtingLocks:
    """The locks of the tab's elections. Those of the page itself (owner ``""``) outlive a standstill."""

    def __init__(self, locks: Locks, stood_still: Callable[[], bool]) -> None:
        self._locks = locks
        self._stood_still = stood_still

    async def acquire(
        self,
        name: str,
        *,
        owner: str = "",
        mode: LockMode = "exclusive",
        if_available: bool = False,
        steal: bool = False,
    ) -> HeldLock | None:
        lock = await self._locks.acquire(name, owner=owner, mode=mode, if_available=if_available, steal=steal)
        return lock if lock is None or not owner else _DoubtingLock(lock, self._stood_still)

    def admit(self, owner: str) -> None:
        self._locks.admit(owner)

    def drop(self, owner: str) -> None:
        self._locks.drop(owner)

    def admitted(self, owner: str) -> bool:
        return self._locks.admitted(owner) and not (owner and self._stood_still())

    async def query(self) -> LockSnapshot:
        return await self._locks.query()
