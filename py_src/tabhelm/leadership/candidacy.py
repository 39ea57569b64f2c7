"""What one election says of its tab: whether it may lead now, how good a leader it would be, whose turn it is.

What others can see for themselves (lifecycle, visibility, network, capabilities) they judge themselves. What only this
tab knows (its session, the app's own say, a rest after it was unhealthy) reaches them as its standing or not, and as a
score.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tabhelm.election import LeadershipPolicy, at_once, ineligible, outdated, own_say, rank, session_unfit
from tabhelm.leadership.office import Candidate, ElectionServices
from tabhelm.presence import TabInfo

UNHEALTHY = "unhealthy"
OVERRUN = "loop-still-running"
"""The loop outlived its grace; two at once would be worse than none."""


class Candidacy:
    """``stands``, ``score`` and ``turn`` are what the tab announces; ``unfit`` is asked at every look."""

    def __init__(
        self,
        key: str,
        policy: LeadershipPolicy,
        candidate: Candidate,
        services: ElectionServices,
        barred: Callable[[], str | None],
        overrun: Callable[[], bool],
    ) -> None:
        self.stands = True
        """Whether it would lead, as far as only the tab itself can know."""
        self.score = 0.0
        self.turn = 0
        """The epoch in which it last led; 0 if it never did, or under a policy that takes no turns."""
        self._key = key
        self._policy = policy
        self._candidate = candidate
        self._services = services
        self._barred = barred
        self._overrun = overrun
        self._page_says: str | None = None
        self._rest_until: float | None = None
        self._alone_from = 0.0
        self._failed = ""

    def unfit(self) -> str | None:
        """Why this tab may not lead now: one short word; ``None`` if it may. Others are told what they cannot see."""
        tab = self._candidate.info()
        hidden = self._hidden_flaw(tab)
        self._announce(stands=hidden is None and self._rest_until is None)
        return ineligible(self._policy, tab) or hidden or ("incompatible" if self._outdated(tab) else None)

    def look(self) -> None:
        """The tab changed: its score may have, too."""
        if self._policy.score is None:
            return
        try:
            score = float(at_once("score", self._policy.score(self._candidate.info())))
            if not math.isfinite(score):
                raise ValueError(f"{score} is no score")
        except Exception as error:  # the app's own code
            self._fault("score", error)
        else:
            self._announce(score=score)

    def page_says(self, unfit: str | None, score: float) -> None:
        """A page's own functions were asked in the page."""
        self._page_says = unfit
        self._announce(score=score)

    def leads(self, epoch: int | None) -> None:
        """Its turn has come. Where there are no epochs, turns are counted by what the others say."""
        if self._policy.max_hold is not None:
            last = max((tab.turn(self._key) for tab in self._tabs()), default=0)
            self._announce(turn=last + 1 if epoch is None else epoch)

    # -- resting ------------------------------------------------------------------------------------------------------

    def rest(self, delay: float) -> None:
        """It resigned as unhealthy: sit out the cool-down, or only ``delay`` seconds where nobody else could lead."""
        now = self._services.clock.monotonic()
        self._rest_until, self._alone_from = now + max(delay, self._policy.cool_down), now + delay
        self._announce(stands=False)

    def resting(self) -> float:
        """The seconds for which it still sits out; 0 if it may stand again."""
        if self._rest_until is None:
            return 0.0
        now, me = self._services.clock.monotonic(), self._candidate.identity.connection_id
        # Somebody unhealthy is better than nobody, and may have recovered.
        alone = all(tab.connection_id == me for tab in rank(self._policy, self._key, self._tabs()))
        left = (self._alone_from if alone else self._rest_until) - now
        if left > 0:
            return left
        self._rest_until = None
        self._announce(stands=True)  # it is fit, or nobody would ask how long it rests
        return 0.0

    # -- inside -------------------------------------------------------------------------------------------------------

    def _hidden_flaw(self, tab: TabInfo) -> str | None:
        if self._overrun():
            return OVERRUN
        try:
            said = own_say(self._policy, tab)
        except Exception as error:  # the app's own code
            self._fault("eligible", error)
            said = "eligible-failed"
        return self._barred() or session_unfit(self._policy, self._candidate.user_session) or self._page_says or said

    def _outdated(self, tab: TabInfo) -> bool:
        return self._policy.newest and outdated(self._policy, self._key, tab, self._tabs())

    def _tabs(self) -> list[TabInfo]:
        return self._services.roster.tabs(self._services.clock.monotonic())

    def _fault(self, what: str, error: Exception) -> None:
        told = f"{what}: {type(error).__name__}: {error}"
        if told != self._failed:  # once, and not at every look
            self._failed = told
            self._services.events.failed(f"{what} of election {self._key}", error)

    def _announce(self, *, stands: bool | None = None, score: float | None = None, turn: int | None = None) -> None:
        said = self.stands, self.score, self.turn
        self.stands = self.stands if stands is None else stands
        self.score = self.score if score is None else score
        self.turn = self.turn if turn is None else turn
        if (self.stands, self.score, self.turn) != said:
            self._candidate.announce()
