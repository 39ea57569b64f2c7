"""Randomness and ids. A port, because tabs restored from one memory snapshot share their generators' state."""

from __future__ import annotations

from typing import Protocol


class Entropy(Protocol):
    def token_bytes(self, count: int) -> bytes:
        """``count`` bytes that no other context draws (from the operating system)."""

    def uniform(self, low: float, high: float) -> float:
        """A number for jitter, ``low <= x <= high``."""
