"""What a page may be doing. ``unknown`` is for hosts that nobody tells (a worker without a page that forwards it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Lifecycle = Literal["active", "hidden", "frozen", "restored", "closing", "unknown"]
LIFECYCLES: frozenset[str] = frozenset(get_args(Lifecycle))


@dataclass(frozen=True, slots=True)
class PageState:
    """What a page says of itself. ``visible`` and ``online`` are its own view (``visibilityState``, ``onLine``)."""

    lifecycle: Lifecycle = "unknown"
    visible: bool = True
    online: bool = True
