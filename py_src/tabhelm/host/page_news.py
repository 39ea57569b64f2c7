"""What a page is told unasked: who is here, who leads, what happened."""

from __future__ import annotations

from collections.abc import Callable

from tabhelm.host.coalescing import Coalescer
from tabhelm.host.views import presence_view
from tabhelm.host.wire import Post
from tabhelm.observe import Event, HeldLockLost, LeadershipChanged, LockTimedOut, UpdateAvailable, as_dict
from tabhelm.services import Services
from tabhelm.tab import Tab


class PageNews:
    """For one session. ``say_leaders`` tells of its elections' leaders.

    The port of a page that stands still (``quiet``) keeps every message: what it can do without is not sent meanwhile.
    """

    def __init__(
        self,
        tab: Tab,
        services: Services,
        post: Post,
        quiet: Callable[[], bool],
        say_leaders: Callable[[], None],
    ) -> None:
        self._tab = tab
        self._services = services
        self._post = post
        self._quiet = quiet
        self._say_leaders = say_leaders
        self._coalescer = Coalescer(services.ports.clock)
        self._unsubscribe = [services.roster.subscribe(self._roster_changed), services.events.subscribe(self._event)]

    def end(self) -> None:
        """The page is gone."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._coalescer.end()

    def say_presence(self) -> None:
        """Who is here, and who leads."""
        if not self._quiet():
            self._post({"type": "presence", **presence_view(self._tab, self._services)})
            self._say_leaders()

    def _roster_changed(self) -> None:
        self._coalescer.soon("presence", self.say_presence)

    def _event(self, event: Event) -> None:
        if not self._quiet() and not self._concerns_others(event):
            self._post({"type": "event", "event": as_dict(event)})

    def _concerns_others(self, event: Event) -> bool:
        """Whether only another page of this engine has use for it. When one tab comes, every other one may change its
        rank: told to all, that would be a message for each pair of them."""
        me = self._tab.identity
        if isinstance(event, LeadershipChanged):
            return event.tab != me.tab_id and {event.before, event.after} <= {"idle", "waiting"}
        if isinstance(event, HeldLockLost | LockTimedOut):
            return event.tab != me.tab_id
        return isinstance(event, UpdateAvailable) and event.connection != me.connection_id
