"""Randomness from the operating system, never from the interpreter's ``random`` module.

Tabs restored from one memory snapshot share that module's state: their "random" jitter would be the same.
"""

from __future__ import annotations

from random import Random

from tabhelm.browser._js import js

_MOST_AT_ONCE = 65_536
"""What ``crypto.getRandomValues`` fills in one call."""


class BrowserEntropy:
    def __init__(self) -> None:
        self._jitter: Random | None = None

    def token_bytes(self, count: int) -> bytes:
        parts = []
        while count > 0:
            part = js().Uint8Array.new(min(count, _MOST_AT_ONCE))
            js().crypto.getRandomValues(part)
            parts.append(part.to_bytes())
            count -= _MOST_AT_ONCE
        return b"".join(parts)

    def uniform(self, low: float, high: float) -> float:
        if self._jitter is None:  # at first use, which is after a restore
            self._jitter = Random(self.token_bytes(32))
        return self._jitter.uniform(low, high)
