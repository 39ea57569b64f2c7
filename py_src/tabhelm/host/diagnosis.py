"""What a tab and its engine know of themselves, for a support ticket: with every id hashed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tabhelm.errors import TabhelmError
from tabhelm.host.status import status_message
from tabhelm.host.views import metrics_view, presence_view, reign_view
from tabhelm.observe import Pseudonyms, as_dict
from tabhelm.services import Services
from tabhelm.tab import Tab
from tabhelm.tasks import within

PATIENCE = 1.0
"""Seconds that the lock manager, the database and the history each may take: what does not answer is told as that."""
REIGNS = 50


async def diagnosis(tab: Tab, salt: str, told: Any = None) -> dict[str, Any]:
    """JSON of everything that support may want to see. Raises nothing.

    Ids of tabs, connections, engines and storage, scopes, and the names of locks that are not ours are hashed with
    ``salt``: the same id is the same word all over one report, and in no other. So they are in error texts and reasons,
    which are the app's own otherwise. ``told`` is what a page says of itself: it comes back with its texts cleaned by
    what only its engine knows.
    """
    services, app = tab.services, tab.services.app
    hidden = Pseudonyms(salt)
    hidden.owner(tab.identity.tab_id)
    hidden.owner(tab.identity.connection_id)
    hidden.owner(tab.user_session or "")
    presence = presence_view(tab, services)
    leaders = {hidden.resource(key): _without_resource(leader) for key, leader in presence["leaders"].items()}
    report = {
        "engine": services.engine_id,
        "app": app,
        "protocol": services.protocol,
        "buildId": services.roster.build,
        "inPage": services.in_page,
        "presence": {**presence, "leaders": leaders},
        "elections": {hidden.resource(key, app): status_message(item.status) for key, item in tab.elections.items()},
        "locks": await _locks(services),
        "database": await _database(services),
        "channel": _channel(services),
        "history": await _history(services),
        "events": [as_dict(event) for event in services.events.recent],
        "ignored": services.events.ignored_counts,
        "tasks": len(services.tasks),
    }
    if told is not None:
        report["told"] = told
    figures = metrics_view(services.metrics())
    resources = {hidden.resource(key, app): item for key, item in figures["resources"].items()}
    cleaned: dict[str, Any] = hidden.cleaned(report, app)
    for lock in [*cleaned["locks"].get("held", ()), *cleaned["locks"].get("pending", ())]:
        lock["name"] = lock.pop("lock")
    texts = hidden.texts(app)
    for item in resources.values():
        for counted in ("failures", "stepDowns"):
            item[counted] = _by_reason(item[counted], texts)
    return {**cleaned, "metrics": figures | {"resources": resources}}


def _by_reason(counts: dict[str, int], texts: Callable[[str], str]) -> dict[str, int]:
    shown: Counter[str] = Counter()
    for reason, count in counts.items():
        shown[texts(reason)] += count
    return dict(shown)


def _without_resource(leader: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in leader.items() if key != "resource"}  # its key says it


async def _locks(services: Services) -> dict[str, Any]:
    try:
        found = await within(services.ports.clock, PATIENCE, services.ports.locks.query())
    except (TabhelmError, TimeoutError) as error:
        return _trouble(error)
    locks: dict[str, Any] = asdict(found)
    for lock in [*locks["held"], *locks["pending"]]:
        lock["lock"] = lock.pop("name")  # the field whose name tells that it is to be hidden
        lock["clientId"] = lock.pop("client_id")
    return locks


async def _database(services: Services) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": services.database.name, "suspended": services.database.suspended}
    clock = services.ports.clock
    began = clock.monotonic()
    try:
        records = await within(clock, PATIENCE, services.count_epochs())
    except (TabhelmError, TimeoutError) as error:
        return facts | _trouble(error)
    return facts | {"epochs": records, "answeredInMs": round((clock.monotonic() - began) * 1000, 1)}


def _channel(services: Services) -> dict[str, Any]:
    now = services.ports.clock.monotonic()
    return {
        "suspended": services.channel.suspended,
        "said": services.beaconer.said,
        "throttled": services.roster.throttled,
        "heard": [
            {
                "engineId": heard.engine_id,
                "number": heard.number,
                "silentForMs": round(heard.silent_for * 1000),
                "nextInMs": round(heard.next * 1000),
                "buildId": heard.build,
            }
            for heard in services.roster.heard_from(now)
        ],
    }


async def _history(services: Services) -> list[Any] | dict[str, Any]:
    try:
        reigns = await within(services.ports.clock, PATIENCE, services.history.read(REIGNS))
    except (TabhelmError, TimeoutError) as error:
        return _trouble(error)
    return [reign_view(reign) for reign in reigns]


def _trouble(error: Exception) -> dict[str, Any]:
    code = error.code if isinstance(error, TabhelmError) else "no-answer"
    return {"error": code, "message": str(error)}
