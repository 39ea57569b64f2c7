"""Tabs of a simulated browser that elect by lease, and a watch that never two of them believe in theirs."""

from __future__ import annotations

from typing import Any

from kit import Member, join
from tabhelm.authority.lease_hold import LeaseHold
from tabhelm.leadership import Election, LeaderContext
from tabhelm.observe import LeadershipChanged
from tabhelm.simulated import World

LEASE = ("indexeddb-lease",)


class Crew:
    """All that lead under leases in one world. ``both``: when two believed at once, which must never be."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.contexts: list[tuple[Member, LeaderContext]] = []
        self.both: list[str] = []
        world.loop.after_step = self._watch

    def join(self, name: str, **facts: Any) -> Member:
        return join(self.world, name, **facts)

    def lead(self, member: Member, resource: str = "r", **policy: Any) -> Election:
        async def loop(context: LeaderContext) -> None:
            member.led.append(context.epoch or 0)
            self.contexts.append((member, context))
            while True:
                await context.sleep(1.0)

        return member.lead(resource, loop=loop, **{"authorities": LEASE, **policy})

    def hold(self, member: Member) -> LeaseHold:
        """The hold of this member's last tenure."""
        found = [context for each, context in self.contexts if each is member][-1].tenure._hold
        assert isinstance(found, LeaseHold)
        return found

    def believers(self) -> list[str]:
        return [
            member.agent.name
            for member, context in self.contexts
            if member.agent.state == "running" and context.tenure._revoked is None and _valid(context)
        ]

    def _watch(self) -> None:
        if len(believers := self.believers()) > 1:
            self.both.append(f"{self.world.loop.time():.3f}: {believers}")

    async def led(self, member: Member, within: float = 60.0) -> float:
        """Wait until it leads; the seconds that took."""
        before = self.world.loop.time()
        await self.world.until(lambda: member.leading, within=within)
        return self.world.loop.time() - before


def _valid(context: LeaderContext) -> bool:
    """As ``hold.held``, but only looked at: a look of the hold's own notes that it ended."""
    hold = context.tenure._hold
    if not isinstance(hold, LeaseHold):
        return hold.held
    tools = hold._tools
    return hold._ended is None and tools.clock.monotonic() < hold._until and tools.locks.admitted(hold._owner)


def fencing(world: World) -> dict[str, dict[str, Any]]:
    """The records of the fencing store by key."""
    return {record["key"]: record for record in world.storage.dump("tabhelm:app").get("fencing", [])}


def reasons(member: Member) -> list[str]:
    """Why its tenures ended."""
    return [
        event.reason
        for event in member.services.events.recent
        if isinstance(event, LeadershipChanged) and event.before == "leading"
    ]
