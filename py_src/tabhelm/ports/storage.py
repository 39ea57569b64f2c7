"""How long the browser keeps this origin's storage, and how much of it there may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StorageEstimate:
    """Bytes, as the browser says; ``None`` where it does not. Both are rough on purpose."""

    usage: int | None
    quota: int | None


class Storage(Protocol):
    """``navigator.storage``. Where a browser has none, or hides it, nothing is persistent and nothing is known."""

    async def persist(self) -> bool:
        """Ask that the browser evicts this origin's storage only when the user says so; whether it agreed.

        The browser may ask the user, and take its time; most decide by themselves. Only a page can ask: in a worker
        this tells what ``persisted`` tells.
        """

    async def persisted(self) -> bool:
        """Whether it has agreed to that before."""

    async def estimate(self) -> StorageEstimate:
        """How much is used and allowed."""
