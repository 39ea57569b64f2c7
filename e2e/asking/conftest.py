"""Tests that ask for ``driven`` need no fault of Chromium's own: they run in Chromium, Firefox and WebKitGTK."""

from __future__ import annotations

from tabhelm.testing.pytest_engines import driven, engine, engine_pool

__all__ = ["driven", "engine", "engine_pool"]
