"""What the demo's receiver does with operations, and what it tells of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tabhelm_build.demo_server import DemoServer

from .conftest import Writer


def test_the_log_of_effects_tells_everything(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer(epoch=3)
    before = time.time() * 1000
    assert ann.send({"kind": "anything", "n": [1, "ü", None]}, None).status_code == 200
    effects = [effect for effect in server.effects() if effect["resource"] == ann.resource]
    assert [effect["payload"] for effect in effects] == [{"kind": "anything", "n": [1, "ü", None]}, None]
    first = effects[0]
    assert before - 1 <= first.pop("accepted_at_ms") <= time.time() * 1000 + 1
    assert first == {
        "op_id": f"{ann.owner}-1-0",
        "partition": "p",
        "payload": {"kind": "anything", "n": [1, "ü", None]},
        "domain": "d0",
        "resource": ann.resource,
        "epoch": 3,
        "stream": "lane",
        "seq": 1,
        "owner": ann.owner,
    }


def test_cases_follow_their_operations(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer()
    ann.send(
        {"kind": "add", "case": "c2", "title": "Pump 7"},
        {"kind": "add", "case": "c1", "title": "Valve"},
        {"kind": "rename", "case": "c2", "title": "Pump 8"},
        {"kind": "complete", "case": "c1"},
    )
    assert server.cases() == [
        {"id": "c2", "title": "Pump 8", "completed": False},
        {"id": "c1", "title": "Valve", "completed": True},
    ]
    # What is none of the demo's is no mistake either: tests send what they like.
    answer = ann.send({"kind": "rename", "case": "nobody", "title": "x"}, {"kind": "rename", "id": 42}, {"kind": "add"})
    assert [result["status"] for result in answer.json()["results"]] == ["committed"] * 3
    assert len(server.cases()) == 2


def test_payloads_may_ask_to_be_refused(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer()
    for kind, status in (("reject", "rejected"), ("retry", "retry")):
        result = ann.send({"kind": kind, "reason": "because"}).json()["results"][0]
        assert (result["status"], result["detail"]) == (status, "because")
    assert [effect for effect in server.effects() if effect["resource"] == ann.resource] == []


def test_a_case_that_no_database_can_store_is_rejected(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer()
    request = ann.request({"kind": "add", "case": "c3", "title": "half a pair \ud83d"})
    headers = {**request["headers"], "content-type": "application/json"}
    answer = ann.client.post(f"{server.url}/api/operations", content=json.dumps(request["json"]), headers=headers)
    result = answer.json()["results"][0]
    assert result["status"] == "rejected" and "cannot be stored" in result["detail"]


def test_requests_and_counters(server: DemoServer, writer: Callable[..., Writer]) -> None:
    old, new = writer(epoch=1), writer(epoch=2, owner="bob")
    assert old.send(1, 2).status_code == 200
    assert new.send().status_code == 200, "an empty batch is the barrier"
    assert old.send(3).status_code == 409
    log = [entry for entry in server.requests() if entry["resource"] == old.resource]
    assert [(entry["epoch"], entry["seq"], entry["operations"], entry["outcome"]) for entry in log] == [
        (1, 1, 2, 200),
        (2, 1, 0, 200),
        (1, 2, 1, 409),
    ]
    assert all(entry["answered"] for entry in log)
    counts = server.metrics()["resources"][old.resource]
    assert (counts["accepted"], counts["barrier"], counts["stale"]) == (2, 1, 1)


def test_a_request_without_a_token_is_logged_too(server: DemoServer, writer: Callable[..., Writer]) -> None:
    answer = writer().client.post(f"{server.url}/api/operations", json={"operations": []})
    assert answer.status_code == 400
    entry = server.requests()[-1]
    assert (entry["resource"], entry["epoch"], entry["outcome"]) == (None, None, 400)


def test_the_overview_tells_what_the_demo_shows(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann, late = writer(epoch=2), writer(epoch=1, owner="late")

    def overview() -> dict[str, Any]:
        answer = ann.client.get(f"{server.url}/api/overview")
        assert answer.headers["cache-control"] == "no-store"
        return dict(answer.json())

    before = overview()
    assert ann.send({"kind": "add", "case": "seen", "title": "Pump 7"}, *range(40)).status_code == 200
    assert late.send("too late").status_code == 409
    after = overview()
    assert {"id": "seen", "title": "Pump 7", "completed": False} in after["cases"]
    assert after["accepted"] - before["accepted"] == 41
    assert (after["doubled"], after["refused"] - before["refused"], after["repeated"]) == (0, 1, before["repeated"])
    assert [effect["payload"] for effect in after["newest"]] == list(range(39, 9, -1))
    assert after["faults"] == {}
    server.faults(status=503)
    assert overview()["faults"] == {"status": 503}
    server.faults()
