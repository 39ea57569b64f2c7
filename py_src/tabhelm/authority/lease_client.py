"""What a page asks a lease service, and what the answers mean (docs/leases.md has the contract)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabhelm import app_headers
from tabhelm.app_headers import HeaderSource
from tabhelm.errors import LeaseRefused, MalformedToken, NoHeaders
from tabhelm.fencing.http_form import read_token_fields
from tabhelm.fencing.token import FencingToken
from tabhelm.json_text import is_number, loads
from tabhelm.ports import Clock, Http, HttpAnswer

LEASE_HELD = "urn:tabhelm:lease-held"
LONGEST = 10.0
"""Seconds that an attempt may take, and that the app has to give its headers for it."""


@dataclass(frozen=True, slots=True)
class Given:
    """The lease is ours for so many ``seconds``."""

    token: FencingToken
    seconds: float


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody else has it, and it expires in so many ``seconds`` if it is not renewed. Without a ``holder`` (only
    where it was to be renewed): nobody has it any more."""

    seconds: float
    holder: str | None


class LeaseClient:
    """Asks the service at ``url`` for one resource."""

    def __init__(self, http: Http, clock: Clock, url: str, resource: str, headers: HeaderSource | None) -> None:
        self.resource = resource
        self._http = http
        self._clock = clock
        self._url = f"{url.rstrip('/')}/{resource}"
        self._headers = headers
        self._sent: Mapping[str, str] | None = None

    async def ask(
        self,
        candidate: str,
        seconds: float,
        *,
        timeout: float,
        renew: bool = False,
        wait: float = 0.0,
        above: int = 0,
    ) -> Given | Taken:
        """Acquire it for so many ``seconds``; ``wait``: for so long if it is taken; ``renew``: only if it is ours.

        Raises:
            Unreachable: no answer came; whether it is ours is unknown.
            LeaseRefused: the answer is none of the contract, or the app's own headers could not be had.
        """
        body = {"candidate": candidate, "ttl_ms": round(seconds * 1000)}
        more = {"wait_ms": round(wait * 1000), "above": above, "renew": renew}
        text = json.dumps(body | {name: value for name, value in more.items() if value})
        try:
            own = await app_headers.ask(self._headers, self._clock, min(timeout, LONGEST), "lease_headers")
        except NoHeaders as error:
            raise LeaseRefused(str(error)) from error
        self._sent = own
        headers = {"accept": "application/json", **own, "content-type": "application/json"}
        answer = await self._http.send("POST", self._url, headers=headers, body=text, timeout=timeout)
        return self._read(answer, candidate)

    def give_back(self, candidate: str) -> None:
        """It is on its way when this returns, with the headers that were sent last. Best effort: it expires by
        itself."""
        if self._sent is None:
            return  # nothing was ever asked for
        # The candidate is made of name parts, "/" and ":": all of them may stand in a query as they are.
        self._http.farewell("DELETE", f"{self._url}?candidate={candidate}", headers=self._sent)

    def _read(self, answer: HttpAnswer, candidate: str) -> Given | Taken:
        shown = f"the lease service {self._url} answered HTTP {answer.status}"
        if answer.redirected:
            raise LeaseRefused(f"{shown} after a redirect: is somebody signed in?")
        try:
            said: Any = loads(answer.body)
            if answer.status == 409 and said["type"] == LEASE_HELD:
                return Taken(_seconds(said), said["holder"])
            if answer.status == 200:
                return Given(self._token(said["token"], candidate), _seconds(said))
        except (ValueError, TypeError, KeyError, MalformedToken) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            raise LeaseRefused(f"{shown}, and not as the contract says ({why}): is a LeaseService there?") from None
        title = said.get("title") if isinstance(said, dict) else None
        raise LeaseRefused(f"{shown}: {title}" if isinstance(title, str) else f"{shown}: is a LeaseService there?")

    def _token(self, said: Any, candidate: str) -> FencingToken:
        token = read_token_fields(said)
        if (token.resource, token.owner_id) != (self.resource, candidate):
            raise ValueError(f"the token is of {token.resource!r} and {token.owner_id!r}")
        return token


def _seconds(said: Any) -> float:
    left = said["expires_in_ms"]
    if not is_number(left) or left < 0:
        raise ValueError(f"expires_in_ms {left!r:.40} is not valid")
    return left / 1000
