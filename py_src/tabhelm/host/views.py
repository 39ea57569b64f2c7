"""Roster, leaders and queues in the page's words: camelCase, milliseconds."""

from __future__ import annotations

from typing import Any

from tabhelm.presence import LeaderInfo, TabInfo
from tabhelm.queue import QueueStats, SharedQueue
from tabhelm.services import Services
from tabhelm.tab import Tab


def presence_view(tab: Tab, services: Services) -> dict[str, Any]:
    """Who is here, as this engine knows: a hint."""
    now = services.ports.clock.monotonic()
    tabs = [_tab_view(info, tab) for info in services.roster.tabs(now)]
    own = next((view for view in tabs if view["self"]), None)
    leaders = {
        info.resource.removeprefix(f"{services.app}:"): leader_view(info, services)
        for info in sorted(services.roster.leaders(now), key=lambda info: info.epoch)
        if info.liveness != "expired"
    }
    return {"self": own, "tabs": tabs, "leaders": leaders}


def _tab_view(info: TabInfo, tab: Tab) -> dict[str, Any]:
    return {
        "tabId": info.tab_id,
        "connectionId": info.connection_id,
        "generation": info.generation,
        "engineId": info.engine_id,
        "lifecycle": info.lifecycle,
        "visible": info.visible,
        "online": info.online,
        "version": info.version,
        "capabilities": sorted(info.capabilities),
        "stands": sorted(info.stands),
        "liveness": info.liveness,
        "ageMs": info.age * 1000,
        "self": info.connection_id == tab.identity.connection_id,
    }


def leader_view(info: LeaderInfo | None, services: Services) -> dict[str, Any] | None:
    """Who is said to lead: a hint."""
    if info is None:
        return None
    return {
        "tabId": info.tab_id,
        "connectionId": info.connection_id,
        "epoch": info.epoch or None,
        "sinceMs": (services.ports.clock.wall() - info.age) * 1000,
        "liveness": info.liveness,
    }


def stats_view(stats: QueueStats, shared: SharedQueue) -> dict[str, Any]:
    return {
        "queued": stats.queued,
        "inFlight": stats.in_flight,
        "done": stats.done,
        "dead": stats.dead,
        "oldestAgeMs": None if stats.oldest_age is None else stats.oldest_age * 1000,
        "paused": shared.paused,
        "lastError": shared.last_error,
    }
