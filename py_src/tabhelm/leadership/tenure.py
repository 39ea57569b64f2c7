"""One term of leadership: its grant, whether it still stands, and the streams of tokens made from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tabhelm.authority.base import Hold
from tabhelm.errors import InvalidPayload, LeadershipLost, NotFenced
from tabhelm.fencing.epochs import Grant
from tabhelm.fencing.token import FencingToken, HighWater
from tabhelm.messages import MAX_WORD, Progress

if TYPE_CHECKING:
    from tabhelm.leadership.serving import Served


class Tenure:
    """Stands from the epoch's completion until it is revoked, or until its lock ends: whichever is seen first.

    The lock's end is read synchronously from the lock desk, so a tenure is over the moment that a page froze, even if
    no Python ran since.
    """

    def __init__(self, resource: str, hold: Hold, grant: Grant | None) -> None:
        self.resource = resource
        self._hold = hold
        self._grant = grant
        self._revoked: str | None = None
        self._drawn = 0
        """Tokens so far, of all streams."""
        self._watchers: list[Callable[[], None]] = []
        self.served: Served | None = None
        """What it answers and publishes, once its loop is about to start."""
        self._reporters: list[Callable[[], None]] = []
        self.progress: Progress = None
        """What the loop last said of how far it is."""
        self.progress_at: float | None = None
        """When that was, on the engine's monotonic clock; ``None`` if it never said anything."""
        self.health = ""
        """``ok`` or ``failing``, as the loop's checks found; empty where nothing is checked."""
        self._raising = asyncio.Lock()

    def report(self, progress: Progress, now: float) -> None:
        """The loop made progress. Whoever watches is told.

        Raises:
            InvalidPayload: it is no short text, number or truth value.
        """
        text = isinstance(progress, str) and len(progress) <= MAX_WORD
        number = isinstance(progress, (int, float)) and abs(progress) < 1e300  # NaN is not, either
        if progress is not None and not text and not number:
            raise InvalidPayload(
                f"progress {progress!r:.60} is not a number or a text of at most {MAX_WORD} characters: it goes out "
                "with the leader's beats"
            )
        self.progress, self.progress_at = progress, now
        self._told()

    def set_health(self, word: str) -> None:
        """``ok`` or ``failing``. Whoever watches is told of a change."""
        if word != self.health:
            self.health = word
            self._told()

    def on_report(self, reporter: Callable[[], None]) -> None:
        """Call back when progress or health were told."""
        self._reporters.append(reporter)

    def _told(self) -> None:
        for reporter in self._reporters:
            reporter()

    @property
    def grant(self) -> Grant:
        """The grant in force (a newer one after ``reissue_above``).

        Raises:
            LeadershipLost, NotFenced
        """
        self.ensure()
        if self._grant is None:
            raise NotFenced(f"the authority of {self.resource!r} issues no epochs: its writes cannot be fenced")
        return self._grant

    @property
    def epoch(self) -> int | None:
        return self._grant.epoch if self._grant else None

    @property
    def ended(self) -> str | None:
        """Why this tenure is over, or ``None`` while it stands."""
        return self._revoked or self._hold.lost

    def ensure(self) -> None:
        """Raise ``LeadershipLost`` if this tenure is over."""
        if (reason := self.ended) is not None:
            raise LeadershipLost(self.resource, reason)

    def revoke(self, reason: str) -> None:
        """End it; the first reason stays. What waits for the end is told."""
        if self._revoked is None:
            self._revoked = reason
            for watcher in self._watchers:
                watcher()

    def on_revoked(self, watcher: Callable[[], None]) -> None:
        """Call back when it is revoked; at once if it is already."""
        if self._revoked is not None:
            watcher()
        else:
            self._watchers.append(watcher)

    async def check(self) -> None:
        """Verify authority and epoch in the store, for code about to do something irreversible.

        Raises:
            LeadershipLost: somebody else leads; this tenure is revoked.
            DatabaseError: the store could not be asked; nothing is known.
        """
        self.ensure()
        try:
            await self._hold.check()
        except LeadershipLost as lost:
            self.revoke(lost.reason)
            raise
        self.ensure()

    async def raise_above(self, high_water: HighWater) -> None:
        """A receiver knows a higher epoch than our store: go on above it, if nobody else leads.

        Raises:
            LeadershipLost: somebody else does; this tenure is revoked.
        """
        async with self._raising:  # several lanes are refused at once, and one new epoch is enough for all
            if self.grant.epoch > high_water.epoch:
                return
            try:
                self._grant = await self._hold.reissue_above(high_water)
            except LeadershipLost as lost:
                self.revoke(lost.reason)
                raise

    def stream(self, name: str) -> TokenStream:
        """The stream of this name. It must have exactly one issuer: do not share a name between two orders of
        writes."""
        return TokenStream(self, name)

    def draw(self) -> int:
        """The next number, for a token of whichever stream."""
        self._drawn += 1
        return self._drawn


class TokenStream:
    """Tokens in one order: each ``next_token`` is above all before it.

    The streams of a tenure are numbered by one count. A receiver asks only that each grows; so a stream is nothing but
    its name, and nobody has to remember one for each partition that was ever written to.
    """

    def __init__(self, tenure: Tenure, name: str) -> None:
        self._tenure = tenure
        self.name = name

    def next_token(self) -> FencingToken:
        """A new token for one protected write; retries carry a new one too.

        Raises:
            LeadershipLost: the tenure is over.
            NotFenced: the authority issues no epochs.
        """
        grant = self._tenure.grant
        return FencingToken(
            domain=grant.domain,
            resource=grant.resource,
            epoch=grant.epoch,
            stream=self.name,
            seq=self._tenure.draw(),
            owner_id=grant.owner_id,
        )
