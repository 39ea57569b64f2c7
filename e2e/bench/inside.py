"""What the benchmark runs in a page's own interpreter: elections by turns with what JavaScript alone would do."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from typing import Any

import tabhelm
from tabhelm import JoinedTab, LeaderContext
from tabhelm.queue import Queue

js: Any = import_module("js")
TABS: list[JoinedTab] = []
PAUSE = 0.2
"""Seconds."""


async def one_election(tab: JoinedTab, resource: str) -> float:
    """Milliseconds: acquire, issue an epoch, start the loop, stop it, release."""
    started = asyncio.Event()

    async def loop(context: LeaderContext) -> None:
        context.next_token()
        started.set()
        await context.sleep(60.0)

    began = js.performance.now()
    election = tab.lead(resource, loop)
    await started.wait()
    election.stop("enough")
    await election.stopped()
    return float(js.performance.now() - began)


async def elections(rounds: int, warm: int) -> str:
    """By turns: an election, and ``raw()``. JSON: ``{"ours": [ms, …], "raw": [ms, …]}``."""
    if not TABS:
        TABS.append(await tabhelm.join(app="bench"))
    ours, raw = [], []
    for number in range(rounds + warm):
        # What the one leaves to be done afterwards (beacons, records of history) is no part of the other.
        await asyncio.sleep(PAUSE)
        one = await one_election(TABS[0], "job")
        other = float(await js.raw(PAUSE * 1000))
        if number >= warm:
            ours.append(one)
            raw.append(other)
    return json.dumps({"ours": ours, "raw": raw})


async def claims(names: Any, size: int, rounds: int, warm: int = 3) -> str:
    """By turns: claim ``size`` operations from each queue and give them back. JSON: milliseconds by queue's name."""
    tab = await tabhelm.join(app="bench")
    found: dict[str, list[float]] = {name: [] for name in names}
    turns = {name: asyncio.Event() for name in names}
    claimed = {name: asyncio.Event() for name in names}

    def claiming(name: str) -> Any:
        async def loop(context: LeaderContext, queue: Queue) -> None:
            batches = queue.batches(context, limit=size)
            while True:
                await turns[name].wait()
                turns[name].clear()
                began = js.performance.now()
                batch = await anext(batches)
                found[name].append(float(js.performance.now() - began))
                assert len(batch.operations) == size, len(batch.operations)
                await batch.settle([])  # none has an outcome: all go back as they were
                claimed[name].set()

        return loop

    for name in found:
        tab.queue(name, loop=claiming(name))
    for _ in range(rounds + warm):
        for name in found:
            turns[name].set()
            await claimed[name].wait()
            claimed[name].clear()
    await tab.leave("enough")
    return json.dumps({name: times[warm:] for name, times in found.items()})
