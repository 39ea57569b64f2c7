"""Requests to a receiver. Cancelling the task aborts the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer. Header names are lower case; ``body`` is text, cut at the port's limit (1 MiB)."""

    status: int
    headers: Mapping[str, str]
    body: str
    redirected: bool = False
    url: str = ""
    """Whose answer it is, after redirects; empty where that is not known."""


class Http(Protocol):
    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: str | None = None, timeout: float
    ) -> HttpAnswer:
        """Send and read the whole answer.

        Raises:
            Unreachable: no whole answer within ``timeout`` seconds, for whatever cause: the outcome is unknown.
        """

    def farewell(self, method: str, url: str, *, headers: Mapping[str, str]) -> None:
        """Send without a body, and wait for nothing: it is on its way when this returns, though the page may go at
        once. Best effort: nobody is told if it does not arrive."""
