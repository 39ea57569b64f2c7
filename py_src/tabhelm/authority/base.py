"""What an authority is, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from tabhelm.fencing.epochs import Grant
from tabhelm.fencing.token import HighWater
from tabhelm.names import Resource


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a holder may rely on. A policy chooses by these, and nothing is silently weaker than asked."""

    exclusive: bool
    """At most one holder at a time, while nobody steals."""
    durable: bool
    """Ownership outlives its holder until it is given up or expires."""
    fenced: bool
    """Each grant has an epoch above all earlier ones, so receivers can refuse stale holders."""
    timeout_based: bool
    """Ownership ends when it is not renewed in time."""
    reach: Literal["tabs", "devices"]
    """Who may compete: the tabs of one browser profile, or all devices."""
    advisory: bool = False
    """It decides by hearsay: two may hold it at once, and nothing is fenced. Never used unless a policy names it."""


class Hold(Protocol):
    """Ownership of a resource, from acquisition to its end. Not yet leadership: that begins with ``begin``."""

    @property
    def held(self) -> bool:
        """Whether ownership is held now; turns false synchronously when it ends."""

    @property
    def lost(self) -> str | None:
        """Why ownership ended: ``lock-stolen`` (taken over by force), ``lease-renewal-failed``, ``newer-epoch`` or
        ``lock-lost``; ``None`` while it is held."""

    def on_end(self, callback: Callable[[str], None]) -> None:
        """Call back once with the reason when ownership ends."""

    def release(self) -> None:
        """Give it up at once; harmless when it has ended."""

    async def begin(self) -> Grant | None:
        """Issue this tenure's epoch; ``None`` where the authority is not fenced.

        Raises:
            LeadershipLost: somebody else leads by now.
            DatabaseError: the epoch could not be made durable.
        """

    async def check(self) -> None:
        """Verify that ownership is held and the epoch current in the store.

        Raises:
            LeadershipLost: it is not.
        """

    async def reissue_above(self, high_water: HighWater) -> Grant:
        """Go on above a receiver's high water (see ``EpochIssuer.reissue_above``)."""


class Authority(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def guarantees(self) -> Guarantees: ...

    async def acquire(self, resource: Resource, *, owner: str, owner_id: str) -> Hold:
        """Wait for ownership. ``owner`` is the lock desk's owner, ``owner_id`` the name in tokens.

        Cancelling withdraws the request.

        Raises:
            LockWithdrawn: the owner may not ask now.
            DatabaseError: the store could not be read.
        """

    async def take_over(self, resource: Resource, *, owner: str, owner_id: str, wanted: Callable[[], bool]) -> Hold:
        """Take ownership by force from whoever has it. Only where the authority is fenced.

        The new hold's epoch counts as a takeover: a holder that was robbed before it had its own is refused it.
        ``wanted`` is asked once more at the last moment.

        Raises:
            LockWithdrawn: the owner may not ask now, or it is no longer wanted.
            DatabaseError: the store could not be read; nothing was taken.
        """
