"""Is exactly one tab acting? Nobody, or more than one, for longer than a policy allows, is an alarm.

What is counted are the leaders of the roster: what they say of themselves, not who may write. Two that act do no harm
where writes are fenced, but one of them should have known better; that nobody acts is an outage, if somebody could.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tabhelm.observe.events import ActingAlarm, ActingRestored, Events
from tabhelm.ports import Clock, Timer


@dataclass(slots=True)
class _Stand:
    limit: float | None
    wanted: Callable[[], bool]


@dataclass(slots=True)
class _Watch:
    stands: dict[object, _Stand] = field(default_factory=dict)
    several: bool = False
    since: float | None = None
    """Waking time since which it is wrong; ``None`` while it is right."""
    alarmed: bool = False
    timer: Timer | None = None


class ActingMonitor:
    """One for all tabs of an engine. ``acting`` counts the leaders; ``awake`` is a monotonic clock, in seconds, that
    stands still while we do: a device that slept is no outage."""

    def __init__(
        self, events: Events, clock: Clock, acting: Callable[[], Mapping[str, int]], awake: Callable[[], float]
    ) -> None:
        self._events = events
        self._clock = clock
        self._acting = acting
        self._awake = awake
        self._watches: dict[str, _Watch] = {}
        self._looking = False
        self._changed = False

    def stands(self, resource: str, limit: float | None, wanted: Callable[[], bool]) -> Callable[[], None]:
        """One of our tabs stands for ``resource``; returns the way to stop watching.

        ``limit``: seconds after which it is an alarm, of several tabs the shortest; ``None``: never. ``wanted``:
        whether the tab may lead now, so that nobody's leading is no matter of policy.
        """
        watch = self._watches.setdefault(resource, _Watch())
        key = object()
        watch.stands[key] = _Stand(limit, wanted)
        self.look()

        def stop() -> None:
            watch.stands.pop(key, None)
            if not watch.stands and self._watches.get(resource) is watch:
                del self._watches[resource]
                _cancel(watch)

        return stop

    def look(self) -> None:
        """Something changed: who leads, or who may."""
        self._changed = True
        if self._looking:
            return  # a listener to what we just told: what it changed is judged when it is done
        self._looking = True
        try:
            while self._changed and self._watches:
                self._changed = False
                self._look_once()
        finally:
            self._looking = False

    def _look_once(self) -> None:
        acting = self._acting()
        for resource, watch in list(self._watches.items()):
            if self._watches.get(resource) is watch:
                self._judge(resource, watch, acting.get(resource, 0))
            if self._changed:
                return  # by a listener: the count is old

    def _judge(self, resource: str, watch: _Watch, acting: int) -> None:
        now = self._awake()
        wrong = acting > 1 or (acting == 0 and any(stand.wanted() for stand in watch.stands.values()))
        if watch.since is not None and (not wrong or watch.several != (acting > 1)):
            alarmed, wrong_for = watch.alarmed, now - watch.since
            watch.since, watch.alarmed = None, False
            _cancel(watch)
            if alarmed:
                self._changed = True  # whoever listens may have done something: judge again
                self._events.emit(ActingRestored(resource, acting, round(wrong_for * 1000)))
                return
        if not wrong:
            return
        if watch.since is None:
            watch.since, watch.several = now, acting > 1
        limit = min((stand.limit for stand in watch.stands.values() if stand.limit is not None), default=None)
        if watch.alarmed or limit is None:
            return
        left = limit - (now - watch.since)
        if left <= 0:
            watch.alarmed = True
            _cancel(watch)
            self._events.emit(ActingAlarm(resource, acting, round((now - watch.since) * 1000)))
        elif watch.timer is None:
            watch.timer = self._clock.call_later(left, lambda: self._due(watch))

    def _due(self, watch: _Watch) -> None:
        watch.timer = None
        self.look()

    def close(self) -> None:
        """Watch nothing any more."""
        for watch in self._watches.values():
            _cancel(watch)
        self._watches.clear()


def _cancel(watch: _Watch) -> None:
    if watch.timer is not None:
        watch.timer.cancel()
        watch.timer = None
