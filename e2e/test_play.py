"""``python build.py demo --play --json`` as a user would run it: one JSON object, and every promise held."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KEYS = {
    "tabs", "operations", "accepted", "duplicates", "lost", "stale_accepted", "stale_rejected",
    "leaders", "failover_ms", "ready_ms", "verdict",
}  # fmt: skip


@pytest.mark.timeout(300)  # the play ends itself, with a verdict, after 240 s
async def test_the_demo_plays_and_keeps_its_promises(chromium_path: str) -> None:
    command = [sys.executable, str(ROOT / "build.py"), "demo", "--play", "--json"]
    environment = {**os.environ, "TABHELM_CHROMIUM": chromium_path}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment, cwd=ROOT
    )
    out, timeline = await process.communicate()
    print(timeline.decode())
    assert process.returncode == 0, out.decode() + timeline.decode()
    result = json.loads(out)
    assert result.keys() == KEYS
    assert result["verdict"] == "passed"
    assert result["tabs"] == 4
    assert result["accepted"] == result["operations"] >= 65
    assert (result["lost"], result["duplicates"], result["stale_accepted"]) == (0, 0, 0)
    assert result["stale_rejected"] >= 2, "the dead leaders' late batches must have been refused"
    epochs = [leader["epoch"] for leader in result["leaders"]]
    assert all(leader.keys() == {"tab", "epoch"} for leader in result["leaders"])
    assert epochs == sorted(set(epochs)) and len(epochs) >= 4
    assert set(result["failover_ms"]) == {"crash", "engine_crash", "freeze"}
    assert len(result["ready_ms"]) == 4
