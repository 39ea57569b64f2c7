"""What a tab says of itself, besides its page's state."""

from __future__ import annotations

from dataclasses import dataclass

from tabhelm.errors import InvalidName
from tabhelm.messages import MAX_ITEMS
from tabhelm.names import MAX_NAME


@dataclass(frozen=True, slots=True)
class TabFacts:
    """What a tab says of itself, besides its page's state."""

    version: str = ""
    capabilities: frozenset[str] = frozenset()
    user_session: str | None = None
    """``None``: never told. Empty: signed out, and whose cookies come next nobody has said yet."""

    def __post_init__(self) -> None:
        # What others would not read in a beacon would hide the tab, and all others of its engine.
        if not isinstance(self.version, str) or len(self.version) > MAX_NAME:
            raise InvalidName(f"version {self.version!r:.60} is not a text of at most {MAX_NAME} characters")
        if len(self.capabilities) > MAX_ITEMS:
            raise InvalidName(f"{len(self.capabilities)} capabilities are more than {MAX_ITEMS}")
        for capability in self.capabilities:
            if not 1 <= len(capability) <= MAX_NAME:
                raise InvalidName(f"capability {capability[:60]!r} is not 1 to {MAX_NAME} characters long")
