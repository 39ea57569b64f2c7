"""What ``demo --play`` makes of a run: the verdict, its JSON object, its exit code. The run itself is recorded here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tabhelm_build.demo_server import DemoServer
from tabhelm_build.play import RESOURCE, Play, conclude

KEYS = {
    "tabs", "operations", "accepted", "duplicates", "lost", "stale_accepted", "stale_rejected",
    "leaders", "failover_ms", "ready_ms", "verdict",
}  # fmt: skip


def effect(op_id: str, seq: int, *, epoch: int = 1, owner: str = "ann") -> dict[str, Any]:
    token = {"domain": "d0", "resource": RESOURCE, "epoch": epoch, "stream": "lane", "seq": seq, "owner": owner}
    return {"op_id": op_id, "partition": "p", "payload": {}, **token, "accepted_at_ms": 1_000 + seq}


class Recorded(DemoServer):
    """A server that only tells what it is given: one list of effects for each time it is asked, the last one on."""

    def __init__(self, *effects: list[dict[str, Any]], stale: int = 0, overtaken: int = 0) -> None:
        super().__init__(None)
        self._told = list(effects)
        self._counts = {"stale": stale, "overtaken": overtaken}

    def effects(self) -> list[dict[str, Any]]:
        return self._told.pop(0) if len(self._told) > 1 else self._told[0]

    def metrics(self) -> dict[str, Any]:
        other = {"stale": 40, "overtaken": 40}
        return {"totals": other, "resources": {RESOURCE: self._counts, "inspections:status": other}}


def played(*op_ids: str) -> Play:
    """A play whose acts went well; these operations were acknowledged."""
    made = Play(quiet=True, patience=0.05)
    made.acks = {op_id: {"partition": "p", "tab": "A"} for op_id in op_ids}
    made.failover_ms = {"crash": 21.0, "engine_crash": 900.5, "freeze": 30.0}
    made.leaders = {1: "A", 2: "B"}
    made.ready_ms = [900.0, 30.0]
    return made


async def judged(
    made: Play, server: DemoServer, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], int, list[str]]:
    """The JSON object, the exit code, and what went to standard error."""
    await made.all_applied(server)
    await made.collect(server)
    code = conclude(made, as_json=True)
    told = capsys.readouterr()
    assert told.out.count("\n") == 1
    return json.loads(told.out), code, told.err.splitlines()


async def test_a_play_that_went_well(capsys: pytest.CaptureFixture[str]) -> None:
    server = Recorded([], [effect("a", 1)], [effect("a", 1), effect("b", 2)], stale=2, overtaken=7)
    result, code, _ = await judged(played("a", "b"), server, capsys)
    assert result.keys() == KEYS
    assert result == {
        "tabs": 2,
        "operations": 2,
        "accepted": 2,
        "duplicates": 0,
        "lost": 0,
        "stale_accepted": 0,
        "stale_rejected": 2,  # a request that a later one of its own owner overtook is no stale owner's
        "leaders": [{"tab": "A", "epoch": 1}, {"tab": "B", "epoch": 2}],
        "failover_ms": {"crash": 21.0, "engine_crash": 900.5, "freeze": 30.0},
        "ready_ms": [900.0, 30.0],
        "verdict": "passed",
    }
    assert code == 0


async def test_a_lost_operation_fails_it(capsys: pytest.CaptureFixture[str]) -> None:
    result, code, told = await judged(played("a", "b"), Recorded([effect("a", 1)]), capsys)
    assert (result["lost"], result["duplicates"], result["verdict"], code) == (1, 0, "failed", 1)
    assert result.keys() == KEYS
    assert any("lost: 'b'" in line for line in told)


async def test_a_doubled_operation_fails_it_and_does_not_stand_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    twice = [effect("a", 1), effect("a", 2)]
    server = Recorded(twice, twice, [*twice, effect("b", 3)])
    result, code, _ = await judged(played("a", "b"), server, capsys)
    assert (result["lost"], result["duplicates"], result["verdict"], code) == (0, 1, "failed", 1)
    assert (result["operations"], result["accepted"]) == (2, 3)


async def test_a_stale_owner_s_accepted_write_fails_it(capsys: pytest.CaptureFixture[str]) -> None:
    server = Recorded([effect("a", 1, epoch=2, owner="bob"), effect("b", 2)])
    result, code, _ = await judged(played("a", "b"), server, capsys)
    assert (result["stale_accepted"], result["verdict"], code) == (1, "failed", 1)


async def test_a_failover_that_did_not_happen_fails_it(capsys: pytest.CaptureFixture[str]) -> None:
    made = played("a")
    del made.failover_ms["freeze"]
    result, code, _ = await judged(made, Recorded([effect("a", 1)]), capsys)
    assert result["failover_ms"] == {"crash": 21.0, "engine_crash": 900.5, "freeze": None}
    assert (result["verdict"], code) == ("failed", 1)
    assert conclude(made, as_json=False) == 1
    assert "Verdict: failed" in capsys.readouterr().out


async def test_a_play_that_ends_early_still_gives_its_object(capsys: pytest.CaptureFixture[str]) -> None:
    made = Play(quiet=True)
    server = Recorded([])
    await made.run(server, "/no/such/chromium")
    assert conclude(made, as_json=True) == 1
    told = capsys.readouterr()
    assert json.loads(told.out).keys() == KEYS
    assert json.loads(told.out)["verdict"] == "failed"
    assert "the play ended early: " in told.err and "/no/such/chromium" in told.err
