"""What may go wrong by chance, and how long things take. All seconds; every draw comes from the world's seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

Span = tuple[float, float]


@dataclass(slots=True)
class Faults:
    """Change any field at any time. Chances are between 0 and 1; a span is the least and the greatest delay."""

    lock_delay: Span = (0.0, 0.003)
    channel_delay: Span = (0.0, 0.005)
    channel_loss: float = 0.0
    """The chance that one receiver misses a message."""
    database_delay: Span = (0.0, 0.002)
    commit_delay: Span = (0.0, 0.004)
    locks_denied: bool = False
    """There are no Web Locks: the context is not secure."""
    storage_denied: bool = False
    storage_hangs: bool = False
    """Opening a database never ends."""
    quota: int | None = None
    """Bytes (of JSON) that all databases together may hold."""
    persistence_refused: bool = False
    http_delay: Span = (0.001, 0.05)
    http_lose_request: float = 0.0
    http_lose_answer: float = 0.0
    """The receiver does the work; the answer never arrives."""
    port_delay: Span = (0.0, 0.003)
    """Between a page and its worker (MessagePort)."""


def draw(rng: Random, span: Span) -> float:
    """A delay from the span; one in four is the least possible, to make things meet at one instant."""
    low, high = span
    return low if high <= low or rng.random() < 0.25 else rng.uniform(low, high)
