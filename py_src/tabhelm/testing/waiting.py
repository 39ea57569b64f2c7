"""Waiting for a condition by asking again and again from outside the browser."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from .errors import WaitTimeout

T = TypeVar("T")


@overload
async def wait_for(
    condition: Callable[[], Awaitable[T | None]], timeout: float = ..., what: str | None = ..., *, interval: float = ...
) -> T: ...


@overload
async def wait_for(
    condition: Callable[[], T | None], timeout: float = ..., what: str | None = ..., *, interval: float = ...
) -> T: ...


async def wait_for(
    condition: Callable[[], Any], timeout: float = 30.0, what: str | None = None, *, interval: float = 0.02
) -> Any:
    """Ask ``condition`` until its answer is true, and return that answer.

    ``condition`` may be a plain function or return an awaitable; what it raises is passed on at once. ``timeout`` and
    ``interval`` are seconds. The condition is always asked a last time *after* the timeout has passed, so that a
    machine that stood still for a while does not fail a wait that would succeed.

    Raises:
        WaitTimeout: the condition stayed false; the message says what was awaited and the last answer.
    """
    what = what or getattr(condition, "__name__", None) or repr(condition)
    deadline = time.monotonic() + timeout
    asked = 0
    while True:
        late = time.monotonic() >= deadline
        answer = condition()
        value = await answer if inspect.isawaitable(answer) else answer
        asked += 1
        if value:
            return value
        if late:
            raise WaitTimeout(f"waited {timeout:g} s for {what}; the last of {asked} answers was {value!r}")
        await asyncio.sleep(interval)


def threw(what: str, js: str, error: str) -> str:
    """What to say of an expression that was to become true and threw instead."""
    told = error.strip().partition("\n")[0].removeprefix("Page.evaluate: ")
    return (
        f"waited for {what}, but this failed in the page: {js[:200]} -> {told}; where something may not be there yet, "
        "write `?.`"
    )
