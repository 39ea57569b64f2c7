"""Leases in this process's memory: for tests, and for trying things out. A restart begins a new domain."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from tabhelm.server.lease_store import Decide, LeaseKey, LeaseRecord, TooManyLeases
from tabhelm.server.store import R


class MemoryLeaseStore:
    """``clock`` gives seconds since 1970."""

    def __init__(self, *, clock: Callable[[], float] = time.time, domain: str | None = None) -> None:
        self.records: dict[LeaseKey, LeaseRecord] = {}
        self._clock = clock
        self._domain = domain or secrets.token_hex(16)

    async def domain(self) -> str:
        return self._domain

    async def change(self, key: LeaseKey, decide: Decide[R], most: int) -> R:
        before = self.records.get(key)
        after, result = decide(before, self._clock())
        if before is None and after is not None:
            if sum(known.subject == key.subject for known in self.records) >= most:
                raise TooManyLeases(f"{most} leases, and no more, may be held by one subject")
        if after is not None:
            self.records[key] = after
        return result

    async def close(self) -> None:
        pass
