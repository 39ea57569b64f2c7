"""Messages to every other context of the origin. A hint, never an authority: they may come late, twice or not at
all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Channel(Protocol):
    def post(self, text: str) -> None:
        """Send to all others (not to ourselves). Never raises once the channel is closed: the message is dropped."""

    def subscribe(self, callback: Callable[[object], None]) -> None:
        """Call back with whatever arrives: text from us, anything at all from others. One callback a channel."""

    def close(self) -> None:
        """Stop; harmless when closed."""


class Channels(Protocol):
    def open(self, name: str) -> Channel:
        """Open the channel of this name."""
