"""What the tests of locks share: bodies that hold a lock until told, and what the browser's lock manager sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.core.kit import APP, Member, join

from tabhelm.locking import Lock
from tabhelm.simulated import World

NAME = f"{APP}:v1:mutation:case-42"
SEEDS = range(6)


def play(main: Callable[[World], Coroutine[Any, Any, None]], *, seed: int) -> None:
    """Run a test in a world of its own."""
    with World(seed) as world:
        world.run(main(world))


class Body:
    """A body that holds a lock until told. ``runs`` shares one list between several: who is inside, never two."""

    def __init__(self, member: Member, inside: list[str], **options: Any) -> None:
        self.member = member
        self.inside = inside
        self.options = options
        self.lock: Lock | None = None
        self.most = 0
        self.done = False
        self.outcome: BaseException | None = None
        self.go = asyncio.Event()
        self.task = member.agent.start(self._run())

    async def _run(self) -> None:
        name = self.member.agent.name
        try:
            async with self.member.tab.lock("case-42", **self.options) as self.lock:
                self.inside.append(name)
                self.most = max(self.most, len(self.inside))
                try:
                    await self.go.wait()
                finally:
                    self.inside.remove(name)
        except Exception as error:
            self.outcome = error
        finally:
            self.done = True

    @property
    def holds(self) -> bool:
        return self.lock is not None and self.lock.held

    def end(self) -> None:
        self.member.call(self.go.set)


def names(world: World) -> tuple[list[str], list[str]]:
    """Who holds and who waits for the lock, as the browser's manager sees it."""
    snapshot = world.lock_manager.snapshot()
    return (
        [info.client_id for info in snapshot.held if info.name == NAME],
        [info.client_id for info in snapshot.pending if info.name == NAME],
    )


async def members(world: World, *which: str, **options: Any) -> list[Member]:
    joined = [join(world, name, **options) for name in which]
    await world.until(lambda: all(len(each.services.roster.engines()) == len(which) - 1 for each in joined))
    return joined


def run(member: Member, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
    return member.agent.start(work())
