"""Fixtures of the tests that run in real tabs; what a failed test leaves behind is told in the plugin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.kit import Site, at_a_new_address

from tabhelm.testing import find_chromium
from tabhelm.testing.pytest_plugin import (
    browser,
    launch_browser,
    playwright_driver,
    pytest_collection_modifyitems,
    pytest_runtest_call,
    pytest_runtest_makereport,
)
from tabhelm_build.demo_server import DemoServer

__all__ = [
    "browser",
    "chromium_path",
    "launch_browser",
    "playwright_driver",
    "pytest_collection_modifyitems",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
]


# -- figures -----------------------------------------------------------------------------------------------------------

_FIGURE = "figure"


@pytest.fixture
def report_figure(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Tells a figure that was measured, as text of one line or more: all of them end up in the run's summary.

    They go with the test's report, so that it makes no difference in which process the test ran.
    """
    return lambda figure: request.node.user_properties.append((_FIGURE, str(figure).strip("\n")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write what was measured, whether its test passed or not."""
    reports = [each for outcome in ("passed", "failed") for each in terminalreporter.stats.get(outcome, [])]
    told = [
        (report.nodeid, value)
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == _FIGURE
    ]
    if told:
        terminalreporter.section("figures")
    for _, figure in sorted(told, key=lambda each: each[0].partition("::")[0]):
        terminalreporter.write_line(figure)


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

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def bundle() -> Path:
    """The bundle under test: ``TABHELM_DIST``, else ``dist/``."""
    return _whole("TABHELM_DIST", ROOT / "dist", "python build.py bundle")


@pytest.fixture(scope="session")
def second_bundle() -> Path:
    """Another build of the same sources, whose pages have an engine of their own: ``TABHELM_DIST_SECOND``."""
    command = "python build.py bundle --out dist-second --build-tag second"
    return _whole("TABHELM_DIST_SECOND", ROOT / "dist-second", command)


def _whole(variable: str, usual: Path, command: str) -> Path:
    folder = Path(os.environ.get(variable) or usual)
    if not (folder / "manifest.json").is_file():
        pytest.fail(f"{folder} holds no bundle: run {command}")
    return folder


@pytest.fixture
def site(bundle: Path) -> Iterator[Site]:
    """The demo server with its receiver and a fresh database, for one test."""
    for server in at_a_new_address(lambda: DemoServer(bundle)):
        yield Site(server)


@pytest.fixture
def two_builds(bundle: Path, second_bundle: Path) -> Iterator[Site]:
    """The same with the second build at ``/tabhelm2``."""
    for server in at_a_new_address(lambda: DemoServer(bundle, second_bundle=second_bundle)):
        yield Site(server)
