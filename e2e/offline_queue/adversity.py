"""A schedule of misfortunes, drawn from a seed: what three tabs enqueue, and what befalls them and the receiver.

The same seed gives the same schedule. Every schedule holds every kind of misfortune at least once, of the tabs and of
the receiver, in an order and in pairs of its own; ``tests/protocol/test_adversity.py`` shows it of many seeds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SEATS = ("a", "b", "c")
TAB_FAULTS = (
    "kill", "kill the leader", "kill the engine", "crash", "close", "reload", "freeze", "freeze the leader", "stop",
    "hang", "offline", "offline all", "cache",
)  # fmt: skip
LARGEST_CALL = 12
"""Operations."""
WIPE = "wipe"
ALL_HELD = "all held"
"""The receiver under a wipe: nothing gets through, so that there is something to lose."""
TROUBLES: dict[str, dict[str, Any]] = {
    "500": {"status": 500, "count": 2},
    "busy": {"retry_after_s": 0.2, "count": 2},
    "a page of HTML": {"body": "<!doctype html><title>Sign in</title>", "count": 1},
    "results of others": {"body": {"results": [{"op_id": "x", "status": "committed"}] * 5}, "count": 1},
    "lost answers": {"drop_answers": True, "count": 3},
    "delivered twice": {"twice": True, "count": 3},
    "late copies": {"echo_ms": 300, "count": 5},
    "held": {"hold": True, "count": 1},
    "slow": {"delay_ms": 80},
    "broken off": {"cut_answers": True, "count": 3},
    "no answer": {"stall": True, "count": 1},
    "restart": {},
}
"""What the receiver does meanwhile; ``restart`` kills its process and starts it again."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tab: a single operation, several in one transaction, or as many calls at once."""

    number: int
    partition: str
    payloads: tuple[dict[str, Any], ...]
    together: bool
    """In one transaction."""
    ids: tuple[str, ...] | None
    """Given by the app, which repeats the call with them until it is acknowledged; ``None``: drawn, never repeated."""

    pause_ms: float
    """Before the call."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "call": self.number,
            "partition": self.partition,
            "payloads": self.payloads,
            "together": self.together,
            "ids": self.ids,
            "pause_ms": self.pause_ms,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """One misfortune of a tab and one of the receiver, in the midst of what the tabs enqueue."""

    fault: str
    victim: str
    trouble: str
    after: float
    """The part of the calls that is acknowledged when the fault comes."""
    calls: dict[str, tuple[Call, ...]]

    @property
    def order(self) -> dict[str, Any]:
        """The receiver's faults."""
        return {"hold": True} if self.trouble == ALL_HELD else TROUBLES[self.trouble]

    @property
    def restarts(self) -> bool:
        """Whether the receiver's process is killed and started again."""
        return self.trouble == "restart"

    def __str__(self) -> str:
        count = sum(len(call.payloads) for calls in self.calls.values() for call in calls)
        return f"{self.fault} ({self.victim}) at {self.after:.0%} of {count} operations; receiver: {self.trouble}"


def schedule(seed: int, operations: int, extra: int = 0) -> list[Step]:
    """The steps of one run: at least so many operations, and ``extra`` more steps than there are kinds."""
    rng = random.Random(seed)
    faults = [*TAB_FAULTS, WIPE, *(rng.choice((*TAB_FAULTS, WIPE)) for _ in range(extra))]
    rng.shuffle(faults)
    troubles = _shuffled_for_ever(rng)
    each = -(-operations // (len(faults) * len(SEATS)))
    writers = {seat: _calls(rng, seat) for seat in SEATS}
    return [
        Step(
            fault,
            rng.choice(SEATS),
            ALL_HELD if fault == WIPE else next(troubles),
            rng.uniform(0.1, 0.8),
            {seat: tuple(_portion(writers[seat], each)) for seat in SEATS},
        )
        for fault in faults
    ]


def _shuffled_for_ever(rng: random.Random) -> Iterator[str]:
    while True:
        yield from rng.sample(sorted(TROUBLES), len(TROUBLES))


def _calls(rng: random.Random, seat: str) -> Iterator[Call]:
    partitions = [*(f"shared-{n}" for n in range(4)), *(f"{seat}-{n}" for n in range(3))]
    operation = itertools.count()
    for number in itertools.count():
        shape = rng.choices(("single", "transaction", "at once"), (50, 35, 15))[0]
        numbers = [next(operation) for _ in range(1 if shape == "single" else rng.randint(2, LARGEST_CALL))]
        ids = tuple(f"{seat}-{n}" for n in numbers) if shape != "at once" and rng.random() < 0.5 else None
        payloads = tuple(_payload(rng, seat, n) for n in numbers)
        yield Call(number, rng.choice(partitions), payloads, shape != "at once", ids, rng.uniform(0, 16))


def _payload(rng: random.Random, seat: str, number: int) -> dict[str, Any]:
    if rng.random() < 0.01:
        return {"kind": "reject", "reason": f"{seat} {number} is poison"}
    return {"kind": "note", "from": seat, "n": number, "text": "x" * rng.randint(0, 200)}


def _portion(calls: Iterator[Call], operations: int) -> Iterator[Call]:
    count = 0
    while count < operations:
        call = next(calls)
        count += len(call.payloads)
        yield call
