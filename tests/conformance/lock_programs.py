"""Random programs of lock requests, with what is seen after each step: the same on simulated and on real locks.

No pytest and nothing beyond tabhelm and the standard library, like the cases. A program is a list of steps drawn from a
seed. ``play`` takes them one by one; after each it waits until the context's own view and the lock manager's agree, and
notes who holds and who waits. That makes the notes a matter of the rules alone, not of timing.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from cases_kit import eventually, fresh, spawn

from tabhelm.errors import LockWithdrawn
from tabhelm.ports import HeldLock, LockSnapshot, Ports

NAMES = ("a", "b")
OWNERS = ("one", "two")
ACTIONS = (
    "exclusive",
    "exclusive",
    "shared",
    "shared",
    "try",
    "try-shared",
    "steal",
    "release",
    "release",
    "cancel",
    "drop",
)
Step = tuple[str, str, str, int]
"""What, on which name, for which owner, and a number that picks one of those who hold or wait."""
Seen = dict[str, list[list[str]]]
"""By name: who holds, in the order of asking, and who waits; each as its number and mode."""


def program(seed: int, length: int = 24) -> list[Step]:
    """The steps of a seed."""
    draw = random.Random(seed)
    return [
        (draw.choice(ACTIONS), draw.choice(NAMES), draw.choice(OWNERS), draw.randrange(1 << 16)) for _ in range(length)
    ]


@dataclass
class _Request:
    number: int
    name: str
    owner: str
    mode: str
    task: asyncio.Task[HeldLock | None]

    @property
    def lock(self) -> HeldLock | None:
        if not self.task.done() or self.task.cancelled() or self.task.exception() is not None:
            return None
        return self.task.result()

    @property
    def holds(self) -> bool:
        return self.lock is not None and self.lock.held

    @property
    def waits(self) -> bool:
        return not self.task.done()

    def __str__(self) -> str:
        return f"{self.number}{self.mode[0]}"


@dataclass
class _Player:
    """Owners live in two contexts: which of them asks must make no difference."""

    ports: dict[str, Ports]
    real: dict[str, str]
    requests: list[_Request] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)

    async def step(self, number: int, step: Step) -> None:
        action, name, owner, pick = step
        outcome = ""
        match action:
            case "exclusive" | "shared":
                self._ask(number, name, owner, action)
            case "try" | "try-shared":
                mode = "shared" if action == "try-shared" else "exclusive"
                request = self._ask(number, name, owner, mode, if_available=True)
                await asyncio.wait([request.task])
                outcome = "got it" if request.lock is not None else "taken"
            case "steal":
                robbed = [each for each in self.requests if each.name == name and each.holds]
                request = self._ask(number, name, owner, "exclusive", steal=True)
                await asyncio.wait([request.task])
                # Whoever is robbed is told, and told the reason; then the thief's own lock is looked at.
                await self._eventually(lambda: all(not each.holds for each in robbed), f"{robbed} to be told")
                outcome = ", ".join(str(each.lock.ended) for each in robbed if each.lock is not None)
            case "release":
                if chosen := self._pick(name, pick, holds=True):
                    assert chosen.lock is not None
                    chosen.lock.release()
                    outcome = str(chosen)
            case "cancel":
                if chosen := self._pick(name, pick, holds=False):
                    chosen.task.cancel()
                    await asyncio.wait([chosen.task])
                    outcome = str(chosen)
            case _:
                waiting = [each for each in self.requests if each.owner == owner and each.waits]
                held = [each for each in self.requests if each.owner == owner and each.holds]
                self.ports[owner].locks.drop(owner)
                assert not any(each.holds for each in held), "held must turn false with drop, synchronously"
                for each in waiting:
                    await asyncio.wait([each.task])
                    assert isinstance(each.task.exception(), LockWithdrawn), f"{each} was not withdrawn"
                self.ports[owner].locks.admit(owner)
                outcome = f"{len(held)} let go, {len(waiting)} withdrawn"
        self.notes.append([number, action, name, owner, outcome, await self._settled()])

    async def end(self) -> None:
        for owner in OWNERS:
            self.ports[owner].locks.drop(owner)
        for each in self.requests:
            await asyncio.wait([each.task])
            if not each.task.cancelled():
                each.task.exception()

    def _ask(self, number: int, name: str, owner: str, mode: str, **options: bool) -> _Request:
        asked: Any = {"mode": mode, "owner": owner, **options}
        task = spawn(self.ports[owner].locks.acquire(self.real[name], **asked))
        request = _Request(number, name, owner, mode, task)
        self.requests.append(request)
        return request

    def _pick(self, name: str, pick: int, *, holds: bool) -> _Request | None:
        among = [each for each in self.requests if each.name == name and (each.holds if holds else each.waits)]
        return among[pick % len(among)] if among else None

    async def _eventually(self, condition: Any, what: str) -> None:
        await eventually(self.ports[OWNERS[0]], condition, what)

    async def _settled(self) -> Seen:
        """What all see, once the lock manager and our own view say the same: it lets go and grants in one step."""
        for _ in range(500):
            snapshot = await self.ports[OWNERS[0]].locks.query()
            seen = {name: self._agreed(snapshot, name) for name in NAMES}
            if all(each is not None for each in seen.values()):
                return {name: each for name, each in seen.items() if each is not None}
            await self.ports[OWNERS[0]].clock.sleep(0.004)
        raise AssertionError(f"never settled: {snapshot} beside {self._own()}")

    def _agreed(self, snapshot: LockSnapshot, name: str) -> list[list[str]] | None:
        holding = [each for each in self.requests if each.name == name and each.holds]
        waiting = [each for each in self.requests if each.name == name and each.waits]
        held = [info.mode for info in snapshot.held if info.name == self.real[name]]
        pending = [info.mode for info in snapshot.pending if info.name == self.real[name]]
        if sorted(held) != sorted(each.mode for each in holding) or pending != [each.mode for each in waiting]:
            return None
        return [[str(each) for each in holding], [str(each) for each in waiting]]

    def _own(self) -> list[str]:
        return [f"{each}:{'holds' if each.holds else 'waits' if each.waits else 'over'}" for each in self.requests]


async def play(here: Ports, there: Ports, seed: int) -> list[Any]:
    """Take the steps of the seed's program; one note a step: ``[number, action, name, owner, outcome, seen]``."""
    player = _Player({"one": here, "two": there}, {name: fresh(here, f"program-{name}") for name in NAMES})
    for owner in OWNERS:
        player.ports[owner].locks.admit(owner)
    try:
        for number, step in enumerate(program(seed)):
            await player.step(number, step)
    finally:
        await player.end()
    return player.notes
