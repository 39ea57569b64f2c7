"""Only an answer that follows the contract is believed."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabhelm.fencing import FencingToken
from tabhelm.fencing.reply import read_reply, retry_after
from tabhelm.ports import HttpAnswer
from tabhelm.queue.records import Operation
from tabhelm.queue.sender import read_outcomes, request_body

TOKEN = FencingToken("d", "app:offline-queue:q", 7, "lane-0", 3, "me")
OPERATIONS = [Operation("app:offline-queue:q", f"op-{n}", "p", '{"n": 1}', "x", 0.0) for n in range(2)]


def answer(status: int, body: Any, **headers: str) -> HttpAnswer:
    text = body if isinstance(body, str) else json.dumps(body)
    return HttpAnswer(status, {name.replace("_", "-"): value for name, value in headers.items()}, text)


def results(*statuses: str) -> dict[str, Any]:
    return {"results": [{"op_id": f"op-{n}", "status": status} for n, status in enumerate(statuses)]}


def test_a_proper_answer_is_believed() -> None:
    reply = read_reply(answer(200, results("committed", "duplicate"), tabhelm_retention="86400"), TOKEN, 2)
    assert (reply.kind, reply.retention) == ("answered", 86_400.0)
    outcomes = read_outcomes(reply.results, OPERATIONS)
    assert outcomes is not None
    assert [outcome.status for outcome in outcomes.values()] == ["committed", "duplicate"]
    body = results("rejected", "skipped")
    body["results"][0] |= {"detail": "no title", "retry_after": 3}
    outcomes = read_outcomes(read_reply(answer(200, body), TOKEN, 2).results, OPERATIONS)
    assert outcomes is not None
    outcome = outcomes["op-0"]
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
    reply = read_reply(answer(200, body), TOKEN, len(OPERATIONS))
    assert reply.kind == "unknown" or read_outcomes(reply.results, OPERATIONS) is None


@pytest.mark.parametrize("body", [{"results": []}, {"results": [], "more": 1}])
def test_the_barrier_stands_on_an_empty_list_of_results(body: Any) -> None:
    assert read_reply(answer(200, body), TOKEN, 0).kind == "answered"


@pytest.mark.parametrize(
    "body", ["", "{}", "<html>please sign in</html>", {"results": None}, {"results": {}}, {"results": ""}]
)
def test_the_barrier_does_not_stand_on_anything_else(body: Any) -> None:
    assert read_reply(answer(200, body), TOKEN, 0).kind == "unknown"
    assert read_reply(answer(200, results("committed")), TOKEN, 0).kind == "unknown"


@pytest.mark.parametrize("value", ["", "soon", "-1", "inf", "nan", "1e999"])
def test_a_retention_that_is_no_time_is_not_believed(value: str) -> None:
    assert read_reply(answer(200, {"results": []}, tabhelm_retention=value), TOKEN, 0).retention is None


def test_a_redirect_is_unknown_even_if_it_ends_well() -> None:
    good = answer(200, results("committed", "committed"))
    assert read_reply(HttpAnswer(200, good.headers, good.body, redirected=True), TOKEN, 2).kind == "unknown"


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
    reply = read_reply(answer(status, body), TOKEN, len(OPERATIONS))
    assert reply.kind == kind
    assert (reply.high_water is not None) == (kind in ("stale", "overtaken"))
    assert not reply.results


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2", 2.0), ("0", 0.0), (1.5, 1.5), ("99999", 3600.0), ("-1", None), ("soon", None), (None, None), ("nan", None)],
)
def test_retry_after(value: Any, seconds: float | None) -> None:
    assert retry_after(value) == seconds


@pytest.mark.parametrize(
    ("until", "date", "seconds"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:00 GMT", 37.0),
        ("Wed, 01 Mar 2028 00:00:05 GMT", "Tue, 29 Feb 2028 23:59:55 GMT", 10.0),
        ("Sat, 01 Jan 2028 00:10:00 GMT", "Fri, 31 Dec 2027 23:59:00 GMT", 660.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 09:49:00 GMT", 0.0),  # over already
        ("Mon, 07 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 09:49:00 GMT", 3600.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", None, None),  # by whose clock?
        ("Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:00 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37 GMT", "now", None),
    ],
)
def test_a_date_to_retry_after_is_taken_from_the_answers_own(
    until: str, date: str | None, seconds: float | None
) -> None:
    headers = {"retry_after": until} | ({} if date is None else {"date": date})
    assert read_reply(answer(503, "", **headers), TOKEN, 2).retry_after == seconds


@given(st.integers(0, 2**35), st.integers(0, 3_600))
def test_every_date_is_read(at: int, later: int) -> None:
    assert retry_after(formatdate(at + later, usegmt=True), formatdate(at, usegmt=True)) == later


def test_payloads_go_into_the_body_as_they_are() -> None:
    body = json.loads(request_body(OPERATIONS, [each.payload for each in OPERATIONS]))
    assert body["operations"][1] == {"op_id": "op-1", "partition": "p", "payload": {"n": 1}}
