"""Fixtures of the tests that run in real tabs; what a failed test leaves behind is told in the plugin."""

from __future__ import annotations

import os

import pytest

from tabhelm.testing import find_chromium
from tabhelm.testing.pytest_plugin import (
    browser,
    launch_browser,
    playwright_driver,
    pytest_collection_modifyitems,
    pytest_runtest_makereport,
)

__all__ = [
    "browser",
    "chromium_path",
    "launch_browser",
    "playwright_driver",
    "pytest_collection_modifyitems",
    "pytest_runtest_makereport",
]


# -- the browser -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """``TABHELM_CHROMIUM``, else what the build's browser finder knows, else the first known name on the path."""
    if not os.environ.get("TABHELM_CHROMIUM"):
        try:
            from tabhelm_build import browsers
        except ModuleNotFoundError:  # the tests run without the repository's build tools
            pass
        else:
            return str(browsers.find_chromium())
    return find_chromium()


# -- the application under test ----------------------------------------------------------------------------------------
