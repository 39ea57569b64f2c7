"""Only an answer that follows the contract is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tabhelm.fencing import FencingToken
from tabhelm.ports import HttpAnswer
from tabhelm.queue.records import Operation
from tabhelm.queue.sender import interpret, request_body, retry_after

TOKEN = FencingToken("d", "app:offline-queue:q", 7, "lane-0", 3, "me")
OPERATIONS = [Operation("app:offline-queue:q", f"op-{n}", "p", '{"n": 1}', "x", "in-flight", 0.0) for n in range(2)]


def answer(status: int, body: Any, **headers: str) -> HttpAnswer:
    text = body if isinstance(body, str) else json.dumps(body)
    return HttpAnswer(status, {name.replace("_", "-"): value for name, value in headers.items()}, text)


def results(*statuses: str) -> dict[str, Any]:
    return {"results": [{"op_id": f"op-{n}", "status": status} for n, status in enumerate(statuses)]}


def test_a_proper_answer_is_believed() -> None:
    reply = interpret(answer(200, results("committed", "duplicate")), TOKEN, OPERATIONS)
    assert reply.kind == "answered"
    assert [outcome.status for outcome in reply.outcomes.values()] == ["committed", "committed"]
    body = results("rejected", "skipped")
    body["results"][0] |= {"detail": "no title", "retry_after": 3}
    outcome = interpret(answer(200, body), TOKEN, OPERATIONS).outcomes["op-0"]
    assert (outcome.status, outcome.detail, outcome.retry_after) == ("rejected", "no title", 3.0)


@pytest.mark.parametrize(
    "body",
    [
        "<!doctype html><title>Sign in</title>",
        "",
        "null",
        "[]",
        {"results": []},
        results("committed"),
        results("committed", "committed", "committed"),
        results("committed", "probably"),
        {"results": [{"op_id": "op-1", "status": "committed"}, {"op_id": "op-0", "status": "committed"}]},
        {"results": [{"op_id": "other", "status": "committed"}, {"op_id": "op-1", "status": "committed"}]},
        {"results": [None, None]},
        {"results": {"op-0": "committed"}},
        "[" * 100_000,
    ],
    ids=lambda body: str(body)[:40],
)
def test_anything_else_with_status_200_is_unknown(body: Any) -> None:
    assert interpret(answer(200, body), TOKEN, OPERATIONS).kind == "unknown"


def test_a_redirect_is_unknown_even_if_it_ends_well() -> None:
    good = answer(200, results("committed", "committed"))
    assert interpret(HttpAnswer(200, good.headers, good.body, redirected=True), TOKEN, OPERATIONS).kind == "unknown"


def stale(epoch: Any, owner: Any = "other", kind: str = "urn:tabhelm:stale-token") -> dict[str, Any]:
    return {"type": kind, "status": 409, "high_water": {"epoch": epoch, "seq": 1, "owner": owner}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, stale(8), "stale"),
        (409, stale(7), "stale"),
        (409, stale(7, "me"), "overtaken"),
        (409, stale("8"), "unknown"),
        (409, stale(8, kind="urn:other"), "unknown"),
        (409, "conflict", "unknown"),
        (400, {"type": "urn:tabhelm:malformed"}, "unfit"),
        (400, "<html>", "unknown"),
        (401, "", "denied"),
        (403, "", "denied"),
        (413, "", "unfit"),
        (422, {"type": "urn:tabhelm:key-reused"}, "unfit"),
        (429, "", "busy"),
        (503, "", "busy"),
        (500, "", "unknown"),
        (204, "", "unknown"),
        (302, "", "unknown"),
        (404, "", "unknown"),
    ],
)
def test_statuses(status: int, body: Any, kind: str) -> None:
    reply = interpret(answer(status, body), TOKEN, OPERATIONS)
    assert reply.kind == kind
    assert (reply.high_water is not None) == (kind in ("stale", "overtaken"))
    assert not reply.outcomes


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2", 2.0), ("0", 0.0), (1.5, 1.5), ("99999", 3600.0), ("-1", None), ("soon", None), (None, None), ("nan", None)],
)
def test_retry_after(value: Any, seconds: float | None) -> None:
    assert retry_after(value) == seconds


def test_payloads_go_into_the_body_as_they_are() -> None:
    body = json.loads(request_body(OPERATIONS))
    assert body["operations"][1] == {"op_id": "op-1", "partition": "p", "payload": {"n": 1}}
