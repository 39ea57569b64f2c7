"""Several tabs in one engine: sessions, and the bridge to their pages (docs/wire.md)."""

from __future__ import annotations

from tabhelm.host.engine import Bridge, EngineHost, start

__all__ = ["Bridge", "EngineHost", "start"]
