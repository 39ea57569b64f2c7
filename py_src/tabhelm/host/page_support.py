"""What a page may ask about its tab: figures, history, a diagnosis."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from tabhelm.errors import MalformedMessage
from tabhelm.host.diagnosis import diagnosis
from tabhelm.host.views import metrics_view, reign_view
from tabhelm.host.wire import Message, field, optional_text
from tabhelm.json_text import loads
from tabhelm.observe.history import KEEP
from tabhelm.services import Services
from tabhelm.tab import Tab


class PageSupport:
    """Those of one session. ``calls`` are the methods that it answers."""

    def __init__(self, tab: Tab, services: Services) -> None:
        self._tab = tab
        self._services = services
        self.calls: dict[str, Callable[[Message], Awaitable[Any]]] = {
            "diagnose": self._diagnose,
            "metrics": self._metrics,
            "history": self._history,
        }

    async def _diagnose(self, params: Message) -> Any:
        # The page hashes its own part with the same salt.
        salt = optional_text(params, "salt") or self._services.ports.entropy.token_bytes(16).hex()
        told = optional_text(params, "told")
        try:
            words = None if told is None else loads(told)  # as text: null stays null, and comes back as it went
        except ValueError as error:
            raise MalformedMessage(f"'diagnose': field 'told' is no JSON: {error}") from None
        found = await diagnosis(self._tab, salt, words)
        return found if told is None else found | {"told": json.dumps(found["told"])}

    async def _metrics(self, params: Message) -> Any:
        metrics = self._tab.metrics()
        if optional_text(params, "format") == "prometheus":
            return metrics.text()
        return metrics_view(metrics) | {"tasks": len(self._services.tasks)}

    async def _history(self, params: Message) -> Any:
        return [reign_view(reign) for reign in await self._tab.history(field(params, "count", int, KEEP))]
