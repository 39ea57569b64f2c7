"""``navigator.storage``: persistence and room."""

from __future__ import annotations

from typing import Any

from tabhelm.browser._js import Rejected, js, js_exception, outcome
from tabhelm.ports.storage import StorageEstimate


class BrowserStorage:
    async def persist(self) -> bool:
        asked = await _ask("persist")
        return await self.persisted() if asked is None else bool(asked)

    async def persisted(self) -> bool:
        return bool(await _ask("persisted"))

    async def estimate(self) -> StorageEstimate:
        found = await _ask("estimate")
        return StorageEstimate(_bytes(found, "usage"), _bytes(found, "quota"))


async def _ask(method: str) -> Any:
    """What the browser answers; ``None`` if it has no such method here, or refuses to say."""
    try:
        manager = getattr(js().navigator, "storage", None)
        function = getattr(manager, method, None)
        return None if function is None else await outcome(function, manager)
    except (js_exception(), Rejected):  # an opaque origin
        return None


def _bytes(estimate: Any, field: str) -> int | None:
    found = getattr(estimate, field, None)
    return int(found) if isinstance(found, int | float) else None
