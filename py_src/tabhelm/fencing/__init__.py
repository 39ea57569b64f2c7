"""Who may still write? Tokens, durable epochs, guards, and their form in HTTP."""

from __future__ import annotations

from tabhelm.fencing.token import FencingToken, HighWater

__all__ = ["FencingToken", "HighWater"]
