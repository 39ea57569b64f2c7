"""The site of the pages that run Python themselves."""

from __future__ import annotations

from e2e.python_pages.conftest import site

__all__ = ["site"]
