"""Ids that may leave the browser: hashed with a salt, so that one report is consistent and two cannot be joined."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
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
_PLAIN = frozenset(
    {"type", "state", "from", "to", "lifecycle", "liveness", "mode", "authority", "verdict", "change", "boot"}
    | {"app", "version", "buildId", "database", "capabilities"}
)
"""Fields that hold words of ours, versions and capabilities: no place for an id, even where one is spelled alike."""
_LEAST = 3
"""Shorter parts of a scope are hidden only together with the rest of their name: they may be any figure."""
_RANDOM = r"(?:[a-z]-)?[0-9a-f]{16,}"
"""How an id looks whose tab nobody knows any more."""


class Pseudonyms:
    """One report's names. ``salt`` is secret text; reports of two salts have nothing in common."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._known: dict[str, str] = {}
        """All that was hidden or shown as a name so far, and as what."""

    def hide(self, text: str) -> str:
        """``~`` and ten hex digits of SHA-256 over salt and text, the same for the same text; nothing stays nothing."""
        if not text:
            return text
        return self._learn(text, "~" + hashlib.sha256(f"{self._salt}:{text}".encode()).hexdigest()[:_LENGTH])

    def owner(self, text: str) -> str:
        """Hide each of an id's parts joined by ``:``."""
        return self._learn(text, ":".join(self.hide(part) for part in text.split(":")))

    def resource(self, text: str, app: str = "") -> str:
        """A resource whose scope is hidden (it may name a user), with or without its app before it. A queue keeps its
        name."""
        parts = text.split(":")
        shown = 1 + int(bool(app) and parts[0] == app)
        if parts[shown - 1 : shown] == [QUEUE_RESOURCE]:
            shown += 1
        scope = self.owner(":".join(parts[shown:]))
        whole = self._learn(text, ":".join([*parts[:shown], *([scope] if scope else [])]))
        if app and parts[0] == app:
            self._learn(":".join(parts[1:]), whole.removeprefix(f"{app}:"))
        return whole

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
        return self._learn(text, f"{head}:{rest}")

    def texts(self, app: str) -> Callable[[str], str]:
        """Hides in any text what this report hides anywhere else, as the same word, and whatever looks like a random
        id. Names of the app's things stay, also where part of a scope is spelled alike."""
        words = [word for word in self._known if word != app and (":" in word or len(word) >= _LEAST)]
        words.sort(key=len, reverse=True)
        known = "|".join([*map(re.escape, words), _RANDOM])
        pattern = re.compile(f"(?<![A-Za-z0-9])(?:{known})(?![A-Za-z0-9])")
        return lambda text: pattern.sub(lambda found: self._known.get(found[0]) or self.hide(found[0]), text)

    def cleaned(self, value: Any, app: str) -> Any:
        """A copy of what JSON can hold, in which the fields that hold ids, resources and scopes are hidden, and what
        these hold is hidden in every other text, too."""
        self._walk(value, app, str)  # what is hidden is known only at the end
        return self._walk(value, app, self.texts(app))

    def _learn(self, text: str, shown: str) -> str:
        if shown != text or text not in self._known:  # what is hidden anywhere is hidden
            self._known[text] = shown
        return shown

    def _walk(self, value: Any, app: str, texts: Callable[[str], str]) -> Any:
        if isinstance(value, Mapping):
            return {key: self._field(key, item, app, texts) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._walk(item, app, texts) for item in value]
        return texts(value) if isinstance(value, str) else value

    def _field(self, key: str, value: Any, app: str, texts: Callable[[str], str]) -> Any:
        if key in _PLAIN and not isinstance(value, Mapping):
            return value
        if isinstance(value, str) and key in _IDS:
            return self.owner(value)
        if isinstance(value, str) and key in _RESOURCES:
            return self.resource(value, app)
        if isinstance(value, str) and key in ("lockName", "lock"):
            return self.lock(value, app)
        if isinstance(value, (list, tuple)) and key == "stands":
            return [self.resource(item, app) for item in value]
        return self._walk(value, app, texts)
