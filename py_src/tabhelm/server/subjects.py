"""Who sends a request, and is it theirs? What belongs to two subjects never meets."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from tabhelm.server.asgi import Scope
from tabhelm.server.contract import PLAIN, Problem, storable
from tabhelm.server.effects import Denied

Authenticate = Callable[[Scope], str | Awaitable[str]]
"""Returns a name, or raises ``Denied``."""
Owns = Callable[[str, str], bool | Awaitable[bool]]
"""``owns(subject, resource)``: whether this resource is that subject's to write. It may raise ``Denied``."""
NOT_OWNER = "urn:tabhelm:not-owner"


def everybody(scope: Scope) -> str:
    """The default of ``authenticate``: all senders are one subject, ``public``."""
    return "public"


def anything(subject: str, resource: str) -> bool:
    """The default of ``owns``: each subject has a namespace of its own, in which every resource is its own."""
    return True


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
        raise _denied(denial) from denial
    if not isinstance(subject, str) or not subject or not storable(subject):
        raise TypeError(f"authenticate must return a non-empty text, it returned {ascii(subject)[:80]}")
    return subject


async def check_owner(owns: Owns, subject: str, resource: str) -> None:
    """Whoever is signed in now may not be whose work this is: tabs share one cookie jar, and not one session.

    Raises:
        Problem: 403, it is somebody else's; or as ``owns`` said.
        TypeError: it returned something that is neither true nor false.
    """
    try:
        found = owns(subject, resource)
        theirs = await found if inspect.isawaitable(found) else found
    except Denied as denial:
        raise _denied(denial) from denial
    if not isinstance(theirs, bool):
        raise TypeError(f"owns must return True or False, it returned {ascii(theirs)[:80]}")
    if not theirs:
        raise Problem(403, NOT_OWNER, "Not yours", f"whoever is signed in now does not own {resource}")


def _denied(denial: Denied) -> Problem:
    title = "Sign in first" if denial.status == 401 else "This is not allowed"
    return Problem(denial.status, PLAIN, title, denial.reason)
