"""Waiting longer after each failure, never in step with the others."""

from __future__ import annotations

from tabhelm.ports import Entropy

NO_FAILURE = frozenset(
    {
        "step-down",
        "max-hold",
        "loop-finished",
        "lock-lost",
        "lock-stolen",
        "dropped",
        "stolen",
        "withdrawn",
        "newer-epoch",
        "storage-wiped",
        "taken-over",
        "session-changed",
        "logout",
        "generation-changed",
        "outranked",
        "forced",
    }
)
"""Reasons after which a short pause is enough: somebody else's turn. Whatever is not named here may be a failure that
repeats, and is waited for ever longer."""


class Backoff:
    """Exponential with jitter: after the nth failure between half and all of ``min(most, base * 2**n)`` seconds."""

    def __init__(self, entropy: Entropy, base: float, most: float) -> None:
        self._entropy = entropy
        self._base = base
        self._most = most
        self.failures = 0

    def next(self) -> float:
        """Count a failure; the seconds to wait."""
        full = min(self._most, self._base * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return self._entropy.uniform(full / 2, full)

    def reset(self) -> None:
        """It worked: begin anew."""
        self.failures = 0
