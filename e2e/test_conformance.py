"""The conformance cases that the simulated ports pass, on the real ones of every engine: in a page's interpreter, under
the strict CSP.

The cases are shipped as text; all of them run in one page after one boot, each as a test of its own. A case gets two
contexts of one origin; here they are two sets of ports in one page (each with its own lock desk), or one set twice.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tabhelm.testing import ChaosTab
from tabhelm.testing.driver import ENGINES
from tabhelm.testing.pytest_engines import EnginePool, engine_pool, require_engine

__all__ = ["engine_pool"]

CASES_FOLDER = Path(__file__).resolve().parents[1] / "tests" / "conformance"
for folder in (CASES_FOLDER, Path(__file__).resolve().parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from cases_all import CASES  # noqa: E402
from test_lock_programs import simulated  # noqa: E402

from browser_ports import site  # noqa: E402
from browser_ports.room import PythonRoom  # noqa: E402

_RUNNER = """
import tabhelm_desk
from cases_all import CASES
from lock_programs import play
from tabhelm.browser import browser_ports

BY_NAME = {case.name: case for case in CASES}
PORTS = [browser_ports(tabhelm_desk.LockDesk.new()) for _ in range(2)]

async def run(name, contexts):
    await BY_NAME[name].function(PORTS[0], PORTS[contexts - 1])

async def program(seed, contexts):
    return await play(PORTS[0], PORTS[contexts - 1], seed)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=ENGINES)
async def room(request: pytest.FixtureRequest, engine_pool: EnginePool) -> AsyncIterator[PythonRoom]:
    engine = require_engine(request.param)
    files = {file.name: file.read_text() for file in CASES_FOLDER.glob("*.py") if not file.name.startswith("test_")}
    with site.serve() as origin:
        browser = await engine_pool.get(engine)
        yield await PythonRoom.enter(browser, origin, {**files, "conformance_runner.py": _RUNNER})
        await engine_pool.end(engine)


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("name", [case.name for case in CASES])
async def test_conformance(room: PythonRoom, name: str, contexts: int) -> None:
    await room.call("conformance_runner.run", name, contexts)


@pytest.mark.parametrize("contexts", [pytest.param(1, marks=pytest.mark.thorough), 2])
@pytest.mark.parametrize("seed", range(6))
async def test_a_random_program_of_lock_requests(room: PythonRoom, seed: int, contexts: int) -> None:
    """Step by step the same as on the simulated locks: who got it, who was told what, who holds, who waits."""
    real = await room.call("conformance_runner.program", seed, contexts)
    # Chromium does not look at the queue again when a waiting request is withdrawn.
    as_specified = not isinstance(room.tab, ChaosTab)
    # In a thread: it runs a loop of its own.
    expected = await asyncio.to_thread(simulated, seed, 0, withdrawal_grants=as_specified)
    for here, there in zip(real, expected, strict=True):
        assert here == there
