"""What runs inside a page's own interpreter: an app's own database, written to from Python under the guard."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import tabhelm
from tabhelm import LeaderContext, LeadershipPolicy, guard
from tabhelm.fencing.token import FencingToken

DATABASE = tabhelm.database("cases", [guard.FENCE, tabhelm.Store("cases", key_path="id")])
CONTEXTS: list[LeaderContext] = []
ELECTIONS: list[tabhelm.Election] = []
TOKENS: list[FencingToken] = []


async def call(name: str, arguments: str) -> str:
    return json.dumps(await globals()[name](*json.loads(arguments)))


async def count() -> int:
    async def body(transaction: Any) -> int:
        found: int = await transaction.count("fence")
        return found

    return await DATABASE.transaction(["fence"], "readonly", body)


async def effect(token: FencingToken, name: str, rule: guard.Rule = "strict") -> dict[str, Any]:
    """An effect before the check and one after it."""

    async def body(transaction: Any) -> None:
        await transaction.put("cases", {"id": f"{name} before"})
        await guard.check(transaction, "fence", token, rule=rule)
        await transaction.put("cases", {"id": f"{name} after"})

    try:
        await DATABASE.transaction(["fence", "cases"], "readwrite", body)
    except guard.StaleOwner as error:
        high_water = {"epoch": error.epoch, "seq": error.seq, "owner": error.owner_id}
        return {"verdict": "overtaken" if error.overtaken else "stale", "high_water": high_water}
    return {"verdict": "accepted"}


async def show(fields: dict[str, Any], name: str, rule: guard.Rule) -> dict[str, Any]:
    """The effect under a token that came from JavaScript."""
    token = FencingToken(**{("owner_id" if key == "owner" else key): value for key, value in fields.items()})
    return await effect(token, name, rule)


# -- a leader in Python ------------------------------------------------------------------------------------------------


async def stand() -> None:
    tab = await tabhelm.join(app="e2e", stall_after=10.0)

    async def loop(context: LeaderContext) -> None:
        CONTEXTS.append(context)
        while True:
            await context.sleep(0.1)

    ELECTIONS.append(tab.lead("job", loop, policy=LeadershipPolicy()))


async def epoch() -> int | None:
    """Of the tenure that stands now."""
    return CONTEXTS[-1].epoch if CONTEXTS and not CONTEXTS[-1].lost else None


async def draw() -> None:
    """A token for a write that comes later, however late."""
    TOKENS.append(CONTEXTS[-1].next_token())


async def write(name: str, late: bool = False) -> dict[str, Any]:
    """An effect under a fresh token, or the one that was drawn."""
    return await effect(TOKENS[-1] if late else CONTEXTS[-1].next_token(), name)


async def step_down() -> None:
    ELECTIONS[-1].step_down("your turn")


async def late_result() -> list[str]:
    """Work that ends after its tenure: what was applied, and what it was told."""
    applied: list[str] = []

    async def work() -> str:
        ELECTIONS[-1].step_down("meanwhile")
        while not CONTEXTS[-1].lost:
            await asyncio.sleep(0.01)
        return "late"

    try:
        await guard.apply_if_current(CONTEXTS[-1], work, applied.append)
    except tabhelm.LeadershipLost as lost:
        applied.append(type(lost).__name__)
    return applied
