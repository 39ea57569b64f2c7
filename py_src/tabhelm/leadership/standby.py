"""Standing by: the queued request of the first in line, and the force where its holder gives no sign of life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tabhelm.authority.base import Hold
from tabhelm.authority.choice import Choice
from tabhelm.election import Takeover
from tabhelm.leadership.line import Line
from tabhelm.leadership.office import Office
from tabhelm.leadership.silence import Silence
from tabhelm.leadership.states import Waiting
from tabhelm.leadership.term import Term
from tabhelm.names import Resource
from tabhelm.presence.signs import Sign


@dataclass(frozen=True, slots=True)
class _Claim:
    """The holder hangs, and had been silent for so many seconds. ``sign`` was the last sign of life of any leader."""

    silent_for: float
    sign: Sign | None


class Standby:
    """That of one election (``office``), while its status is ``Waiting``."""

    def __init__(self, office: Office, resource: Resource, authority: Choice, line: Line) -> None:
        self._office = office
        self._resource = resource
        self._authority = authority
        self._line = line
        self._claim: _Claim | None = None

    # -- a holder that is known to hang -------------------------------------------------------------------------------

    def claim(self, silent_for: float) -> bool:
        """The holder hangs, and has been silent for so many seconds: take over at once. True if that is allowed."""
        if self._takeover.after is None:
            return False
        self._claim = _Claim(silent_for, self._sign())
        return True

    def drop_claim(self) -> None:
        """Whoever holds the lock now is another one."""
        self._claim = None

    def _claims(self) -> bool:
        """Whether the holder is the one that is known to hang, as far as anybody has heard."""
        return self._claim is not None and self._claim.sign == self._sign()

    def _sign(self) -> Sign | None:
        services = self._office.services
        return services.roster.sign(self._office.key, services.clock.monotonic())

    # -- asking -------------------------------------------------------------------------------------------------------

    def patience(self, place: int) -> float | None:
        """Seconds until the tab at this place may ask: 0 now, ``None`` while another tab leads and a better one stands
        by."""
        return 0.0 if self._claims() else self._line.patience(place)

    async def term(self) -> Term | None:
        """Ask, and take over by force what is held in silence. ``None``: standing by was given up.

        Raises:
            TabhelmError: whatever the authority raises: the request was withdrawn, nothing can decide here, ...
        """
        office = self._office
        silence = Silence(
            office.services.roster, office.key, self._takeover, office.policy.grace, office.services.clock
        )
        try:
            hold = await self._ask(silence)
            if hold is not None:
                return Term(office, hold)
            return await self._take_over(silence) if self._still_asks() and self._overdue(silence) else None
        finally:
            self._claim = None  # it was about this holder

    async def _ask(self, silence: Silence) -> Hold | None:
        identity = self._office.candidate.identity
        asking = self._authority.acquire(self._resource, owner=identity.connection_id, owner_id=identity.owner_id)
        return await self._hold_of(
            asking,
            lambda: self._still_asks() and not self._overdue(silence),
            lambda: silence.left(self._rank),
        )

    async def _take_over(self, silence: Silence) -> Term | None:
        identity = self._office.candidate.identity
        silent_for = max(silence.lasted(), self._claim.silent_for if self._claim is not None else 0.0)
        taking = self._authority.take_over(
            self._resource,
            owner=identity.connection_id,
            owner_id=identity.owner_id,
            wanted=lambda: self._overdue(silence),
        )
        hold = await self._hold_of(taking, lambda: self._still_asks() and self._overdue(silence), lambda: None)
        return None if hold is None else Term(self._office, hold, silent_for)

    async def _hold_of(
        self,
        request: Coroutine[Any, Any, Hold],
        goes_on: Callable[[], bool],
        look_again: Callable[[], float | None],
    ) -> Hold | None:
        """What the request gets, ``None`` if it was given up. Cancelled, it leaves no lock behind."""
        asking = self._office.services.tasks.start(request, f"acquire {self._office.key}", supervised=False)
        try:
            await self._office.changes.follow(asking, goes_on, look_again)
        except asyncio.CancelledError:
            if not asking.cancelled() and asking.exception() is None:
                asking.result().release()
            raise
        return None if asking.cancelled() else asking.result()

    def _still_asks(self) -> bool:
        if self._office.barred() is not None or self._office.resigning() is not None:
            return False
        place = self._line.place()
        if place != self._rank:
            self._office.enter(Waiting(True, place))
        return self.patience(place) is not None

    @property
    def _takeover(self) -> Takeover:
        """Force is only safe where the old holder's late writes are refused, and needless where ownership expires."""
        guarantees = self._authority.guarantees
        fenced = guarantees.fenced and not guarantees.timeout_based
        return self._office.policy.takeover if fenced else Takeover.never

    @property
    def _rank(self) -> int:
        status = self._office.status
        return status.rank if isinstance(status, Waiting) else 0

    def _overdue(self, silence: Silence) -> bool:
        """Whether the holder has been silent for too long."""
        return self._claims() or silence.left(self._rank) == 0.0
