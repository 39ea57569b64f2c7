"""A bundle whose snapshot is missing or broken: the engine boots plainly, and says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2e.kit import Site, join, leader, write

from tabhelm.testing import ChaosBrowser
from tabhelm_build.demo_server import DemoServer

SNAPSHOT = "snapshot.bin.gz"


@pytest.mark.parametrize("fault", ["missing", "corrupt"])
async def test_the_engine_does_without_the_snapshot(
    browser: ChaosBrowser, bundle: Path, tmp_path: Path, fault: str
) -> None:
    copy = tmp_path / "dist"
    shutil.copytree(bundle, copy)
    snapshot = copy / SNAPSHOT
    if fault == "missing":
        snapshot.unlink()
    else:
        content = bytearray(snapshot.read_bytes())
        content[len(content) // 2] ^= 0xFF
        snapshot.write_bytes(content)
    with DemoServer(copy) as server:
        site = Site(server)
        # Not only the tab that made the engine is told, but each that joins it.
        for _ in range(2):
            tab = await site.open(browser)
            facts = await join(tab)
            assert facts["engine"]["from"] == "plain"
            assert SNAPSHOT in facts["engine"]["fallbackReason"]
            told = await tab.until("() => events.find(({ type }) => type === 'boot-fallback')", what="boot-fallback")
            assert SNAPSHOT in told["reason"]
        await site.stand(tab)
        await leader([tab])
        assert await write(tab, "one") == 200
