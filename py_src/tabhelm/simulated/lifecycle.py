"""What the browser tells a page that runs Python itself, and what it does with the page then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tabhelm.ports import LifecycleEvent, PageState
from tabhelm.simulated.world import SimulatedAgent


class SimulatedLifecycle:
    """The lifecycle of one agent that is a page. Methods without a word about it tell the page, then act."""

    def __init__(self, agent: SimulatedAgent) -> None:
        self._agent = agent
        self._callback: Callable[[LifecycleEvent], None] | None = None
        self._state = PageState("active")

    def state(self) -> PageState:
        return self._state

    def subscribe(self, callback: Callable[[LifecycleEvent], None]) -> None:
        self._callback = callback

    def close(self) -> None:
        self._callback = None

    @property
    def listened_to(self) -> bool:
        return self._callback is not None

    # -- what happens to the page -------------------------------------------------------------------------------------

    def show(self, visible: bool) -> None:
        """Bring the page to the front, or hide it: its timers then fire once a second."""
        self._agent.clock.throttled = not visible
        self._become(lifecycle="active" if visible else "hidden", visible=visible)
        self.tell("changed")

    def offline(self, off: bool) -> None:
        """Cut this page off the network, or join it again."""
        self._agent.online = not off
        self._become(online=not off)
        self.tell("changed")

    def freeze(self) -> None:
        """``freeze`` is fired, then the page stands still."""
        self._become(lifecycle="frozen")
        self.tell("freeze")
        self._agent.freeze()

    def thaw(self) -> None:
        """The page goes on, and ``resume`` is fired."""
        self._agent.thaw()
        self._become(lifecycle="active" if self._state.visible else "hidden")
        self.tell("resume")

    def navigate_away(self) -> None:
        """``pagehide`` is fired, then the page rests in the back/forward cache: a lock that it kept evicts it."""
        self.tell("pagehide")
        self._agent.evict = self._agent.die
        self._agent.stop()

    def back(self) -> None:
        """Restored from there, with all its memory, if it was not evicted."""
        if self._agent.alive:
            self._agent.evict = None
            self._agent.go()
            self._become(lifecycle="active" if self._state.visible else "hidden")
            self.tell("pageshow")

    def close_page(self) -> None:
        """``pagehide`` is fired, then the page is gone."""
        self.tell("pagehide")
        self._agent.die()

    def _become(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]

    def tell(self, event: LifecycleEvent) -> None:
        """Fire an event, and do nothing else."""
        if self._callback is not None:
            self._agent.call(lambda: self._callback and self._callback(event))
