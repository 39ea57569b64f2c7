"""What the conformance cases share. No pytest and nothing beyond tabhelm and the standard library: the same files run
on the simulated ports and inside a real browser's interpreter.

A case is ``async def case(here: Ports, there: Ports)``: two contexts of one origin, or one twice (a lone page).
It fails by raising. Names are drawn afresh, so that leftovers of an earlier run do no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tabhelm.ports import HeldLock, Ports

T = TypeVar("T")
CaseFunction = Callable[[Ports, Ports], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Case:
    name: str
    function: CaseFunction


def cases(*functions: CaseFunction) -> list[Case]:
    return [Case(function.__name__, function) for function in functions]


def fresh(ports: Ports, kind: str) -> str:
    """A name nobody else uses."""
    return f"conformance:{kind}:{ports.entropy.token_bytes(8).hex()}"


def spawn(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.ensure_future(coroutine)


async def eventually(ports: Ports, condition: Callable[[], bool], what: str, *, within: float = 20.0) -> None:
    """Wait until the condition holds; fail naming ``what`` if it does not."""
    end = ports.clock.monotonic() + within
    while not condition():
        if ports.clock.monotonic() > end:
            raise AssertionError(f"not within {within} s: {what}")
        await ports.clock.sleep(0.005)


async def holds(ports: Ports, name: str, **options: Any) -> HeldLock:
    """Acquire and insist that it is held."""
    lock = await ports.locks.acquire(name, **options)
    assert lock is not None, f"{name} was not granted"
    assert lock.held, f"{name} was granted but is not held"
    assert lock.name == name, f"{lock.name} was granted instead of {name}"
    return lock


async def raised(kind: type[BaseException], awaitable: Awaitable[Any]) -> BaseException:
    """Insist that awaiting raises exactly that kind of error; return it."""
    try:
        result = await awaitable
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, got the result {result!r}")
