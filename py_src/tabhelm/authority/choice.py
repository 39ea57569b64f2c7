"""Which authority decides for an election: the first one of its policy's list that is possible in this context.

Whether it is possible is found out by asking it, at every acquisition: what a browser denies for a while may come back.
Only what the context cannot have at all leads on to the next on the list (no Web Locks, no storage). A store that hangs
or a request that was withdrawn is a failure of this attempt, and no reason to let something weaker decide.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from tabhelm.app_headers import HeaderSource
from tabhelm.authority.base import Authority, Guarantees, Hold
from tabhelm.authority.rivals import SERVER_LEASE
from tabhelm.authority.server_lease import ServerLeases
from tabhelm.errors import DatabaseDenied, InvalidPolicy, NoAuthority
from tabhelm.names import Resource

OnDegraded = Callable[[str, str, str | None, str], None]
"""Told ``(resource, wanted, used, reason)``: which authority should decide, which one does (``None``: nothing can), and
why."""


class Authorities:
    """The authorities that this context knows, by name."""

    def __init__(
        self,
        known: Iterable[Authority],
        on_degraded: OnDegraded = lambda *_: None,
        servers: ServerLeases | None = None,
    ) -> None:
        self.known = {authority.name: authority for authority in known}
        self._on_degraded = on_degraded
        self._servers = servers

    def choice(
        self, names: Sequence[str], resource: Resource, lease: str | None = None, headers: HeaderSource | None = None
    ) -> Choice:
        """What decides for ``resource``: the first possible one of ``names``. ``lease`` is the URL of a lease service.

        Raises:
            InvalidPolicy: a name that is not known here.
        """
        known = dict(self.known)
        if self._servers is not None and lease is not None:
            known[SERVER_LEASE] = self._servers.at(lease, headers)
        for name in names:
            if name not in known:
                all_known = ", ".join(repr(each) for each in known)
                raise InvalidPolicy(f"authorities: {name!r} is not known; known are {all_known}")
        return Choice([known[name] for name in names], resource, self._on_degraded)


class Choice:
    """An ordered list of authorities, used as one."""

    def __init__(self, authorities: Sequence[Authority], resource: Resource, on_degraded: OnDegraded) -> None:
        self._authorities = authorities
        self._resource = resource.token_resource
        self._on_degraded = on_degraded
        self._at = 0
        self._told: str | None = authorities[0].name
        self.missing: str | None = None
        """What each one on the list lacks, if none was possible when it was asked last."""

    @property
    def name(self) -> str:
        """Which one decided last; at first the first on the list."""
        return self._authorities[self._at].name

    @property
    def guarantees(self) -> Guarantees:
        """Those of the one that decided last."""
        return self._authorities[self._at].guarantees

    async def acquire(self, resource: Resource, *, owner: str, owner_id: str) -> Hold:
        """As ``Authority.acquire``.

        Raises:
            NoAuthority: none on the list is possible in this context; says what each one lacks.
        """
        return await self._first(lambda each: each.acquire(resource, owner=owner, owner_id=owner_id))

    async def take_over(self, resource: Resource, *, owner: str, owner_id: str, wanted: Callable[[], bool]) -> Hold:
        """As ``Authority.take_over``.

        Raises:
            NoAuthority: none on the list is possible in this context; says what each one lacks.
        """
        return await self._first(lambda each: each.take_over(resource, owner=owner, owner_id=owner_id, wanted=wanted))

    async def _first(self, ask: Callable[[Authority], Awaitable[Hold]]) -> Hold:
        missing: list[str] = []
        for at, authority in enumerate(self._authorities):
            self._at = at
            if self.missing is None:
                self._tell(authority.name, missing)
            try:
                hold = await ask(authority)
            except (NoAuthority, DatabaseDenied) as failure:
                missing.append(f"{authority.name}: {failure}")
            else:
                self.missing = None
                self._tell(authority.name, missing)
                self._told = authority.name
                return hold
        self._at = 0
        self._tell(None, missing)
        self.missing = f"nothing can decide who leads {self._resource!r} here; {'; '.join(missing)}"
        raise NoAuthority(self.missing)

    def _tell(self, used: str | None, missing: Sequence[str]) -> None:
        """Tell a change for the worse, once. That the first on the list decides is nothing to warn of."""
        if used == self._told:
            return
        if missing:
            self._told = used
            self._on_degraded(self._resource, self._authorities[0].name, used, "; ".join(missing))
