"""Roster, leaders and queues in the page's words: camelCase, milliseconds."""

from __future__ import annotations

from typing import Any

from tabhelm.names import leader_lock
from tabhelm.observe import Durations, Metrics, Reign
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
        "buildId": info.build or None,
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
    wall = services.ports.clock.wall()
    return {
        "resource": info.resource.removeprefix(f"{services.app}:"),
        "tabId": info.tab_id,
        "connectionId": info.connection_id,
        "engineId": info.engine_id,
        "epoch": info.epoch or None,
        "sinceMs": (wall - info.age) * 1000,
        "liveness": info.liveness,
        "version": info.version,
        "lockName": leader_lock(info.resource, services.protocol),
        "authority": info.authority or None,
        "health": info.health or None,
        "progress": info.progress,
        "progressAtMs": None if info.progress_age is None else (wall - info.progress_age) * 1000,
    }


def reign_view(reign: Reign) -> dict[str, Any]:
    """One entry of the history."""
    return {
        "resource": reign.resource,
        "epoch": reign.epoch,
        "tabId": reign.tab_id,
        "engineId": reign.engine_id,
        "version": reign.version,
        "authority": reign.authority or None,
        "beganMs": reign.began * 1000,
        "endedMs": None if reign.ended is None else reign.ended * 1000,
        "reason": reign.reason,
    }


def metrics_view(metrics: Metrics) -> dict[str, Any]:
    """All figures, by token resource."""
    return {
        "resources": {
            resource: {
                "leadersActing": item.leaders_acting,
                "acquisitions": item.acquisitions,
                "failures": dict(item.failures),
                "stepDowns": dict(item.step_downs),
                "overruns": item.overruns,
                "loopFailures": item.loop_failures,
                "takeovers": item.takeovers,
                "refused": dict(item.refused),
                "alarms": dict(item.alarms),
                "wait": _durations_view(item.wait),
                "hold": _durations_view(item.hold),
            }
            for resource, item in metrics.resources.items()
        },
        "ignored": dict(metrics.ignored),
        "events": dict(metrics.events),
        "tabs": metrics.tabs,
        "locks": {"held": metrics.locks_held, "lost": metrics.locks_lost, "timedOut": metrics.lock_timeouts},
    }


def _durations_view(durations: Durations) -> dict[str, Any]:
    return {"count": durations.count, "sumMs": durations.sum * 1000, "longestMs": durations.longest * 1000}


def stats_view(stats: QueueStats, shared: SharedQueue) -> dict[str, Any]:
    return {
        "queued": stats.queued,
        "inFlight": stats.in_flight,
        "done": stats.done,
        "dead": stats.dead,
        "bytes": stats.bytes,
        "ratePerSecond": stats.rate,
        "blocked": stats.blocked,
        "oldestAgeMs": None if stats.oldest_age is None else stats.oldest_age * 1000,
        "paused": shared.paused,
        "lastError": shared.last_error,
    }
