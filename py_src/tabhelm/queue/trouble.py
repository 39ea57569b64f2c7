"""Why a queue's endpoint cannot be used: told once, not at every retry."""

from __future__ import annotations

from collections.abc import Callable

_PATIENCE = 3
"""What may pass (no answer, 503, a proxy's 502) is told when it came so often in a row."""
_MOST = 8
"""Reasons that are told until it works again: texts may hold what is new each time."""


class Trouble:
    """Of one queue. ``tell`` is called with a reason, and with ``None`` once it works again."""

    def __init__(self, tell: Callable[[str | None], None]) -> None:
        self._tell = tell
        self._told: set[str] = set()
        self._failures = 0

    def failed(self, detail: str, *, lasting: bool, counts: bool = True) -> None:
        """The endpoint did not take an empty batch. ``lasting``: it will not, either, the next time. ``counts``: it is
        a failure after a pause, not one more of the same moment."""
        self._failures += counts
        known = detail in self._told or len(self._told) >= _MOST
        if not known and (lasting or self._failures >= _PATIENCE):
            self._told.add(detail)
            self._tell(detail)

    def over(self) -> None:
        """The endpoint works."""
        self._failures = 0
        if self._told:
            self._told.clear()
            self._tell(None)
