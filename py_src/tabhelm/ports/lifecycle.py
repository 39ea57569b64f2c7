"""What a page may be doing, and who tells.

``unknown`` is for contexts that nobody tells: a worker is frozen and thawed with its page, but hears of neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Lifecycle = Literal["active", "hidden", "frozen", "restored", "closing", "unknown"]
LIFECYCLES: frozenset[str] = frozenset(get_args(Lifecycle))
LifecycleEvent = Literal["changed", "freeze", "resume", "pagehide", "pageshow"]
"""``changed``: visibility or network. ``pagehide``: the page goes, perhaps into the back/forward cache; ``pageshow``:
it came back from there."""


@dataclass(frozen=True, slots=True)
class PageState:
    """What a page says of itself. ``visible`` and ``online`` are its own view (``visibilityState``, ``onLine``)."""

    lifecycle: Lifecycle = "unknown"
    visible: bool = True
    online: bool = True


class PageLifecycle(Protocol):
    """What happens to the context that we run in. Only a host that lives in a page (or in its worker) has one."""

    def state(self) -> PageState:
        """How it is now."""

    def subscribe(self, callback: Callable[[LifecycleEvent], None]) -> None:
        """Call back at every event, one callback at most.

        The callback runs inside the browser's own event handler: after ``freeze`` and ``pagehide`` the page may stand
        still at once, so what must be done before has to be done when the callback returns.
        """

    def close(self) -> None:
        """Listen no more; harmless when closed."""
