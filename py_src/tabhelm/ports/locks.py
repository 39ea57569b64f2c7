"""Web Locks, grouped by owner so that everything of a vanished page can be let go in one synchronous step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

LockMode = Literal["exclusive", "shared"]
LockEnd = Literal["released", "dropped", "stolen"]
"""Why a held lock ended: by ``release()``, by ``drop(owner)``, or because another context stole it."""


class HeldLock(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def held(self) -> bool:
        """Whether the lock is held now; turns false synchronously with release, drop and theft."""

    @property
    def ended(self) -> LockEnd | None:
        """Why it is held no more; known as soon as ``held`` is false."""

    def release(self) -> None:
        """Let go at once; harmless when the lock has ended."""

    def on_end(self, callback: Callable[[LockEnd], None]) -> None:
        """Call back once when the lock ends (soon, if it already has). One callback a lock."""


@dataclass(frozen=True, slots=True)
class LockInfo:
    name: str
    mode: str
    client_id: str


@dataclass(frozen=True, slots=True)
class LockSnapshot:
    """Stale the moment it is returned: for diagnosis on demand only."""

    held: tuple[LockInfo, ...]
    pending: tuple[LockInfo, ...]


class Locks(Protocol):
    """Each owner (a page's connection id, or ``""`` for the context itself) is *admitted* before it may ask.

    ``drop`` also shuts the owner out until it is admitted again: what Python asks for on behalf of a page that froze a
    moment ago must not queue, for a frozen waiter that is granted a lock starves the living.
    """

    async def acquire(
        self,
        name: str,
        *,
        owner: str = "",
        mode: LockMode = "exclusive",
        if_available: bool = False,
        steal: bool = False,
    ) -> HeldLock | None:
        """Wait for the lock. ``None`` only with ``if_available`` when it is taken. Cancelling withdraws the request.

        Raises:
            LockWithdrawn: the owner was dropped, or is not admitted.
            NoAuthority: this context can have no locks (insecure or opaque origin).
        """

    def admit(self, owner: str) -> None:
        """Let ``owner`` ask for locks (again)."""

    def drop(self, owner: str) -> None:
        """Release all that ``owner`` holds and withdraw all that it asked for, before returning; shut it out."""

    def admitted(self, owner: str) -> bool:
        """Whether ``owner`` may ask now: false from the moment its page froze, hung or left, even if nobody said so
        yet."""

    async def query(self) -> LockSnapshot:
        """What the browser's lock manager sees (this evicts pages of other tabs from the bfcache: diagnosis only)."""
