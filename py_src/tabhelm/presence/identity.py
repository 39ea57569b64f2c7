"""Which tab is this? An id that survives reloads, and that a duplicated tab does not share.

A browser that duplicates a tab copies its sessionStorage, id and all. So a page also holds a Web Lock on its id; a page
that cannot get the lock within ``CLAIM_PATIENCE`` (the time that a reload's old document may need to go) draws a new
id.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from tabhelm.errors import InvalidName
from tabhelm.names import check_joined, check_part, tab_lock
from tabhelm.ports import Clock, Entropy, HeldLock, Locks

CLAIM_PATIENCE = 0.3


@dataclass(frozen=True, slots=True)
class Identity:
    """``tab_id`` lives as long as the tab, ``connection_id`` as long as one join; ``generation`` counts the joins."""

    tab_id: str
    connection_id: str
    generation: int

    def __post_init__(self) -> None:
        check_part("tab id", self.tab_id)
        check_part("connection id", self.connection_id)
        if not 0 <= self.generation < 2**53:
            raise InvalidName(f"generation {self.generation} of tab {self.tab_id!r} is not a count of joins")
        check_joined("the owner in tokens", {"tab id": self.tab_id, "connection id": self.connection_id})

    @property
    def owner_id(self) -> str:
        """Who a fencing token names: one connection of one tab, never used twice."""
        return f"{self.tab_id}:{self.connection_id}"


class TabMemory(Protocol):
    """What a tab remembers over reloads (sessionStorage)."""

    def read(self) -> tuple[str, int] | None:
        """Tab id and generation, or ``None`` if there is nothing (or storage is denied)."""

    def write(self, tab_id: str, generation: int) -> None: ...


def draw_id(entropy: Entropy, prefix: str) -> str:
    """A new random id, 64 bits: tabs of one browser profile are few, and a clash is found by the tab lock."""
    return f"{prefix}-{entropy.token_bytes(8).hex()}"


async def claim_identity(
    app: str, protocol: int, memory: TabMemory, locks: Locks, clock: Clock, entropy: Entropy, *, owner: str = ""
) -> tuple[Identity, HeldLock]:
    """Find out who this tab is, and hold the lock that says so.

    Returns the identity and the held tab lock; release it when the page leaves or enters the back/forward cache.
    """
    known = memory.read()
    lock: HeldLock | None = None
    tab_id, generation = draw_id(entropy, "t"), 1
    if known is not None:
        lock = await _claim(tab_lock(app, protocol, known[0]), locks, clock, owner)
    if known is not None and lock is not None:
        tab_id, generation = known[0], known[1] + 1
    else:
        lock = await locks.acquire(tab_lock(app, protocol, tab_id), owner=owner)
        assert lock is not None, "only ifAvailable requests can come back without a lock"
    memory.write(tab_id, generation)
    return Identity(tab_id, draw_id(entropy, "c"), generation), lock


async def _claim(name: str, locks: Locks, clock: Clock, owner: str) -> HeldLock | None:
    """Hold the lock; ``None`` if somebody keeps it for longer than ``CLAIM_PATIENCE``."""
    loop = asyncio.get_running_loop()
    asking = loop.create_task(locks.acquire(name, owner=owner))

    async def give_up() -> None:
        await clock.sleep(CLAIM_PATIENCE)
        try:
            # What nobody holds has been granted by the time that this is answered, however late both are.
            await locks.query()
        finally:
            asking.cancel()

    patience = loop.create_task(give_up())
    try:
        return await asking
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        return None
    finally:
        patience.cancel()
        await asyncio.gather(patience, return_exceptions=True)
