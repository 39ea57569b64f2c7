"""The lock desk in Python passes the cases that the one in JavaScript passes, in a real page, and leaks no proxy."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Playwright

from tabhelm.testing import ChaosBrowser

CASES_FOLDER = Path(__file__).resolve().parents[2] / "tests" / "conformance"
if str(CASES_FOLDER) not in sys.path:
    sys.path.insert(0, str(CASES_FOLDER))

from cases_locks import CASES  # noqa: E402
from e2e.browser_ports import site  # noqa: E402
from e2e.browser_ports.room import PythonRoom  # noqa: E402

_RUNNER = """
import tabhelm_desk
from cases_locks import CASES
from tabhelm.browser import browser_ports
from tabhelm.browser.desk import LockDesk

BY_NAME = {case.name: case for case in CASES}
PYTHON = [LockDesk(), LockDesk()]
PORTS = [browser_ports(desk) for desk in (*PYTHON, tabhelm_desk.LockDesk.new())]

async def run(name, here, there):
    await BY_NAME[name].function(PORTS[here], PORTS[there])
    assert [desk.size for desk in PYTHON] == [0, 0], "the desk still knows of requests"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def room(chromium_path: str, playwright_driver: Playwright) -> AsyncIterator[PythonRoom]:
    files = {file.name: file.read_text() for file in CASES_FOLDER.glob("cases_*.py")}
    inside = Path(site.__file__).with_name("inside.py").read_text()
    # The leak test of the ports, over our desk.
    inside = inside.replace('import_module("tabhelm_desk").LockDesk.new()', "LockDesk()", 1)
    inside = inside.replace(
        "from tabhelm.browser import", "from tabhelm.browser.desk import LockDesk\nfrom tabhelm.browser import", 1
    )
    with site.serve() as origin:
        async with ChaosBrowser.launch(chromium_path, playwright=playwright_driver) as browser:
            shipped = {**files, "desk_runner.py": _RUNNER, "inside.py": inside}
            yield await PythonRoom.enter(browser, origin, shipped)


@pytest.mark.parametrize("name", [case.name for case in CASES])
@pytest.mark.parametrize(("here", "there"), [(0, 0), (0, 1), (0, 2), (2, 0)])
async def test_conformance(room: PythonRoom, name: str, here: int, there: int) -> None:
    await room.call("desk_runner.run", name, here, there)


async def test_no_operation_leaves_a_proxy_behind(room: PythonRoom) -> None:
    grown = await room.call("inside.leaks", timeout=300)
    assert {name: count for name, count in grown.items() if count} == {}


async def test_cancelled_requests_leave_nothing_in_the_queue(room: PythonRoom) -> None:
    seen = await room.call("inside.cancelled_requests_are_withdrawn")
    assert seen == {"queued": 100, "pending": 0, "held": 0, "desk": 0}


async def test_a_grant_that_comes_after_the_cancellation_is_not_kept(room: PythonRoom) -> None:
    assert await room.call("inside.late_grants_are_let_go") == []
