"""Cases that take ``driven`` run in Chromium, Firefox and WebKitGTK."""

from __future__ import annotations

from tabhelm.testing.pytest_engines import driven, engine, engine_pool

__all__ = ["driven", "engine", "engine_pool"]
