"""Is exactly one tab acting? Nobody, or more than one, for longer than a policy allows, is an alarm.

What is counted are the leaders of the roster: what they say of themselves, not who may write. Two that act do no harm
where writes are fenced, but one of them should have known better; that nobody acts is an outage, if somebody could.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tabhelm.observe.events import ActingAlarm, ActingRestored, Events
from tabhelm.ports import Clock, Timer


@dataclass(slots=True)
class _Stand:
    limit: float | None
    wanted: Callable[[], bool]


@dataclass(slots=True)
class _Watch:
    unfollow: Callable[[], None]
    stands: dict[object, _Stand] = field(default_factory=dict)
    several: bool = False
    since: float | None = None
    """Waking time since which it is wrong; ``None`` while it is right."""
    alarmed: bool = False
    timer: Timer | None = None


class ActingMonitor:
    """One for all tabs of an engine. ``acting`` counts the leaders of a resource, ``follow`` calls back when that may
    have changed and returns the way to stop; ``awake`` is a monotonic clock, in seconds, that stands still while we do:
    a device that slept is no outage."""

    def __init__(
        self,
        events: Events,
        clock: Clock,
        acting: Callable[[str], int],
        awake: Callable[[], float],
        follow: Callable[[str, Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._events = events
        self._clock = clock
        self._acting = acting
        self._awake = awake
        self._follow = follow
        self._watches: dict[str, _Watch] = {}
        self._looking = False
        self._due: dict[str, None] = {}
        """The resources that are still to be judged."""

    def stands(self, resource: str, limit: float | None, wanted: Callable[[], bool]) -> Callable[[], None]:
        """One of our tabs stands for ``resource``; returns the way to stop watching.

        ``limit``: seconds after which it is an alarm, of several tabs the shortest; ``None``: never. ``wanted``:
        whether the tab may lead now, so that nobody's leading is no matter of policy.
        """
        watch = self._watches.get(resource)
        if watch is None:
            watch = self._watches[resource] = _Watch(self._follow(resource, lambda: self.look(resource)))
        key = object()
        watch.stands[key] = _Stand(limit, wanted)
        _cancel(watch)  # its limit may be a shorter one
        self.look(resource)

        def stop() -> None:
            watch.stands.pop(key, None)
            if not watch.stands and self._watches.get(resource) is watch:
                del self._watches[resource]
                _end(watch)

        return stop

    def look(self, resource: str) -> None:
        """Something changed: who leads this, or who may."""
        self._due[resource] = None
        if self._looking:
            return  # a listener to what we just told: what it changed is judged when it is done
        self._looking = True
        try:
            while self._due:
                due = next(iter(self._due))
                del self._due[due]
                if (watch := self._watches.get(due)) is not None:
                    self._judge(due, watch, self._acting(due))
        finally:
            self._looking = False
            self._due.clear()

    def _judge(self, resource: str, watch: _Watch, acting: int) -> None:
        now = self._awake()
        wrong = acting > 1 or (acting == 0 and any(stand.wanted() for stand in watch.stands.values()))
        if watch.since is not None and (not wrong or watch.several != (acting > 1)):
            alarmed, wrong_for = watch.alarmed, now - watch.since
            watch.since, watch.alarmed = None, False
            _cancel(watch)
            if alarmed:
                self._due[resource] = None  # whoever listens may have done something: judge again
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
            watch.timer = self._clock.call_later(left, lambda: self._time_is_up(resource, watch))

    def _time_is_up(self, resource: str, watch: _Watch) -> None:
        watch.timer = None
        self.look(resource)

    def close(self) -> None:
        """Watch nothing any more."""
        for watch in self._watches.values():
            _end(watch)
        self._watches.clear()


def _end(watch: _Watch) -> None:
    watch.unfollow()
    _cancel(watch)


def _cancel(watch: _Watch) -> None:
    if watch.timer is not None:
        watch.timer.cancel()
        watch.timer = None
