"""Queues of simulated tabs: opened, filled and looked at."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from kit import Member
from tabhelm.fencing.epochs import Grant
from tabhelm.queue import Operation, Outcome, Queue, Sending
from tabhelm.queue.claims import Claim, Found, Wanted
from tabhelm.queue.options import Rejected
from tabhelm.queue.settling import RETENTION, Settlement
from tabhelm.queue.store import QueueStore
from tabhelm.simulated import SimulatedReceiver, World

URL = "https://receiver.example/operations"
DAY = 86_400.0


def simulated(function: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test in a world of its own, for at most 100 virtual days."""

    def run() -> None:
        with World(1) as world:
            world.run(function(world), limit=100 * DAY)

    run.__name__ = function.__name__
    return run


def opened(member: Member, **options: Any) -> Queue:
    """The queue ``m`` of a tab."""
    return member.call(lambda: member.tab.queue("m", **options))  # type: ignore[no-any-return]


async def put(member: Member, queue: Queue, *numbers: int, partition: str = "default") -> None:
    """Enqueue one after the other."""
    for number in numbers:
        await member.agent.start(queue.enqueue({"n": number}, partition=partition, op_id=f"op-{number}"))


def applied(receiver: SimulatedReceiver) -> list[int]:
    return [effect.payload["n"] for effect in receiver.accepted]


async def reasons(member: Member, queue: Queue) -> dict[str, str]:
    """Dead operations with their reasons."""
    return {letter.op_id: letter.reason for letter in await member.agent.start(queue.dead_letters())}


class Ledger:
    """An own sender of one operation at a time, whose answers a test decides; it writes down what it was given."""

    each = True

    def __init__(self, decide: Callable[[Operation, Sending], Any] = lambda operation, sending: None) -> None:
        self.decide = decide
        self.sent: list[str] = []
        self.sendings: list[Sending] = []

    async def send(self, operations: Sequence[Operation], sending: Sending) -> Sequence[Outcome]:
        (operation,) = operations
        self.sent.append(operation.op_id)
        self.sendings.append(sending)
        answer = self.decide(operation, sending)
        if isinstance(answer, Coroutine):
            answer = await answer
        return [Outcome.of(answer)]


class BenchStore(QueueStore):
    """A queue without a flusher: one claim and one settlement at a time."""

    async def claim(
        self,
        grant: Grant,
        limit: int,
        *,
        after: str = "",
        alone: Mapping[str, str] | None = None,
        retention: float = RETENTION,
        rejected: Rejected = "dead",
    ) -> Found:
        """Claim as ``Wanted`` says."""
        return await self.turn(grant, (), Wanted(limit, retention, after=after, alone=alone or {}, rejected=rejected))

    async def settle(
        self,
        grant: Grant,
        claim: Claim,
        outcomes: Mapping[str, Outcome],
        delays: Mapping[str, float] | None = None,
        *,
        rejected: Rejected = "dead",
    ) -> list[Operation]:
        """Write down a ``Settlement``; returns the operations that died."""
        settlement = Settlement(claim, outcomes, delays or {})
        return list((await self.turn(grant, [settlement], None, rejected=rejected)).dead)


def operations(found: Found) -> list[Operation]:
    """All that was claimed."""
    return [operation for claim in found.claims for operation in claim.operations]
