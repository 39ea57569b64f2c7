"""Who should ask, and when: the best candidate that does not lead at once, the others when nobody has led for a while.

A hint only. Wrong presence may cost time, never liveness: in the end everybody asks.
"""

from __future__ import annotations

from tabhelm.election import LeadershipPolicy, rank
from tabhelm.leadership.office import Candidate, ElectionServices

STAGGER = 0.25
"""Seconds without a leader, times rank, after which a tab that is not the best candidate asks too."""


class Line:
    """One tab's place among those who stand for one resource, as its roster shows them."""

    def __init__(self, key: str, policy: LeadershipPolicy, candidate: Candidate, services: ElectionServices) -> None:
        self._key = key
        self._policy = policy
        self._candidate = candidate
        self._services = services
        self._leaderless_since: float | None = None

    def place(self) -> int:
        """How many candidates are better, as of now."""
        now = self._services.clock.monotonic()
        leader = self._services.roster.leader(self._key, now)
        if leader is not None:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = now
        order = [
            tab
            for tab in rank(self._policy, self._key, self._services.roster.tabs(now))
            if leader is None or tab.connection_id != leader.connection_id
        ]
        self._services.watch.first_in_line(self, order[0].engine_id if order else None)
        connections = [tab.connection_id for tab in order]
        me = self._candidate.identity.connection_id
        return connections.index(me) if me in connections else len(connections)

    def patience(self, place: int) -> float | None:
        """Seconds until the tab at this place may ask: 0 now, ``None`` while another one leads and a better one stands
        by."""
        if place == 0:
            return 0.0
        if self._leaderless_since is None:
            return None
        return max(0.0, self._leaderless_since + STAGGER * place - self._services.clock.monotonic())

    def leave(self) -> None:
        """The tab stands no more."""
        self._services.watch.first_in_line(self, None)
