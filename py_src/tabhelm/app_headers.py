"""The app's own HTTP headers, such as a bearer token: what they may hold, and how they are asked for in time."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping

from tabhelm.errors import InvalidOptions, NoHeaders
from tabhelm.ports import Clock
from tabhelm.tasks import by_deadline

HeaderSource = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Texts by name, or a function that gives them, which may be async and is asked before each request."""
OURS = frozenset({"fencing-token", "idempotency-key", "content-type"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\0\r\n\u0100-\U0010ffff]*")


def checked(headers: object, key: str) -> dict[str, str]:
    """The headers, with their names in lower case, so that none of ours stands beside them a second time. ``key``: the
    option that they were given in.

    Raises:
        InvalidOptions: not a mapping of texts, or one that names a header of ours.
    """
    if not isinstance(headers, Mapping):
        kind = type(headers).__name__  # and not what it is: it may be a secret
        raise InvalidOptions(f"{key} of type {kind} is not valid: a mapping of texts, or a function that gives one")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str) or not _NAME.fullmatch(name):
            raise InvalidOptions(f"{key}: {name!r:.60} is not valid: names and values are texts")
        if not _VALUE.fullmatch(value):
            raise InvalidOptions(f"{key}: the value of {name!r:.60} holds what no header can: a line break, say")
        if name.lower() in OURS:
            raise InvalidOptions(f"{key}: {name!r} is tabhelm's own: leave it out")
    return {name.lower(): value for name, value in headers.items()}


async def ask(source: HeaderSource | None, clock: Clock, timeout: float, key: str) -> Mapping[str, str]:
    """The headers for one request, asked for at most ``timeout`` seconds.

    Raises:
        NoHeaders: the app's function failed, took too long, or gave something else; ``key`` names it.
    """
    if source is None:
        return {}
    try:
        given = source() if callable(source) else source
        if inspect.isawaitable(given):
            given = await by_deadline(clock, timeout, _awaited(given))
        return checked(given, key)
    except InvalidOptions as error:
        raise NoHeaders(str(error)) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise NoHeaders(f"the {key} function was cancelled") from None  # what it awaited was, not this request
    except Exception as error:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise NoHeaders(f"the {key} function failed: {text[:500]}") from error


async def _awaited(given: Awaitable[Mapping[str, str]]) -> Mapping[str, str]:
    return await given
