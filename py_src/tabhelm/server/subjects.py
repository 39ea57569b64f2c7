"""Who sends a request? What belongs to two subjects never meets."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from tabhelm.server.asgi import Scope
from tabhelm.server.contract import PLAIN, Problem, storable
from tabhelm.server.effects import Denied

Authenticate = Callable[[Scope], str | Awaitable[str]]
"""Returns a name, or raises ``Denied``."""


def everybody(scope: Scope) -> str:
    """The default of ``authenticate``: all senders are one subject, ``public``."""
    return "public"


async def subject_of(authenticate: Authenticate, scope: Scope) -> str:
    """The name of who sends this request.

    Raises:
        Problem: 401 or 403, as ``authenticate`` said.
        TypeError: it returned something that is no name.
    """
    try:
        found = authenticate(scope)
        subject = await found if inspect.isawaitable(found) else found
    except Denied as denial:
        title = "Sign in first" if denial.status == 401 else "This is not allowed"
        raise Problem(denial.status, PLAIN, title, denial.reason) from denial
    if not isinstance(subject, str) or not subject or not storable(subject):
        raise TypeError(f"authenticate must return a non-empty text, it returned {ascii(subject)[:80]}")
    return subject
