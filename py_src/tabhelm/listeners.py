"""Who is told of changes. A listener is often the app's code: watching must not break what is watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Callbacks in the order in which they came. One that raises is dropped, and told to ``failed(what, error)``."""

    def __init__(self, what: str, failed: Callable[[str, BaseException], None]) -> None:
        self._what = what
        self._failed = failed
        self._listeners: list[Callable[P, None]] = []

    def add(self, listener: Callable[P, None]) -> Callable[[], None]:
        """Call back from now on; returns the way to stop, which may be called twice."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def __len__(self) -> int:
        return len(self._listeners)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all that listen now."""
        for listener in list(self._listeners):
            try:
                listener(*args, **kwargs)
            except Exception as error:
                if listener in self._listeners:
                    self._listeners.remove(listener)
                self._failed(self._what, error)
