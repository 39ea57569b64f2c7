"""Ids that may leave the browser: hashed with a salt, so that one report is consistent and two cannot be joined."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tabhelm.errors import InvalidName
from tabhelm.names import QUEUE_RESOURCE, LockName

_LENGTH = 10
_IDS = frozenset(
    {"tab", "tabId", "connection", "connectionId", "engine", "engineId", "owner", "ownerId", "clientId", "sender"}
    | {"domain", "holder", "session", "userSession", "scope"}
)
"""Fields that hold ids. A tab's and a connection's, joined by ``:``, make an owner."""
_RESOURCES = frozenset({"resource", "queue"})
_PERSONAL = frozenset({"lifeline", "tab", "engine"})
"""Kinds of locks whose resource is an id."""


class Pseudonyms:
    """One report's names. ``salt`` is secret text; reports of two salts have nothing in common."""

    def __init__(self, salt: str) -> None:
        self._salt = salt

    def hide(self, text: str) -> str:
        """``~`` and ten hex digits of SHA-256 over salt and text, the same for the same text; nothing stays nothing."""
        if not text:
            return text
        return "~" + hashlib.sha256(f"{self._salt}:{text}".encode()).hexdigest()[:_LENGTH]

    def owner(self, text: str) -> str:
        """Hide each of an id's parts joined by ``:``."""
        return ":".join(self.hide(part) for part in text.split(":"))

    def resource(self, text: str, app: str = "") -> str:
        """A resource whose scope is hidden (it may name a user), with or without its app before it. A queue keeps its
        name."""
        parts = text.split(":")
        shown = 1 + int(bool(app) and parts[0] == app)
        if parts[shown - 1 : shown] == [QUEUE_RESOURCE]:
            shown += 1
        return ":".join([*parts[:shown], *(self.hide(part) for part in parts[shown:])])

    def lock(self, text: str, app: str) -> str:
        """A lock's name: of ours, kind and resource stay; the locks of others are hidden altogether."""
        try:
            name = LockName.parse(text)
        except InvalidName:
            return self.hide(text)
        if name.app != app:
            return self.hide(text)
        head = f"{name.app}:v{name.version}:{name.kind}"
        scope = f":{name.scope}" if name.scope is not None else ""
        rest = self.owner(name.resource + scope) if name.kind in _PERSONAL else self.resource(name.resource + scope)
        return f"{head}:{rest}"

    def cleaned(self, value: Any, app: str) -> Any:
        """A copy of what JSON can hold, in which the fields that hold ids, resources and scopes are hidden."""
        if isinstance(value, Mapping):
            return {key: self._field(key, item, app) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.cleaned(item, app) for item in value]
        return value

    def _field(self, key: str, value: Any, app: str) -> Any:
        if isinstance(value, str) and key in _IDS:
            return self.owner(value)
        if isinstance(value, str) and key in _RESOURCES:
            return self.resource(value, app)
        if isinstance(value, str) and key in ("lockName", "lock"):
            return self.lock(value, app)
        if isinstance(value, (list, tuple)) and key == "stands":
            return [self.resource(item, app) for item in value]
        return self.cleaned(value, app)
