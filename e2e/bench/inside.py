"""What the benchmark runs in a page's own interpreter: elections by turns with what JavaScript alone would do."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from typing import Any

import tabhelm
from tabhelm import JoinedTab, LeaderContext

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
