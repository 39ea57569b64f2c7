"""What a client sends appears in SQL, logs, answers and metrics as text alone, whatever it holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from databases import Database, create_tables, insert
from hostile_kit import FORGED, HARMFUL, Lines, ask, harmless, lines, payloads, quickly, texts
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from receiver_kit import SQLITE, Client, MakeClient, operation, token

from tabhelm.fencing.http_form import token_header
from tabhelm.fencing.token import FencingToken
from tabhelm.server import Effect, FencedReceiver, ReceiverMetrics, Reject, Retry
from tabhelm.server.logs import escaped

__all__ = ["lines"]
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=40)


def complaining(effect: Effect, connection: Any) -> None:
    """An application that quotes in all its errors what it was sent."""
    insert(connection, effect.op_id)
    match effect.payload:
        case ["reject", text]:
            raise Reject(str(text))
        case ["retry", text]:
            raise Retry(str(text))
        case ["chain", text]:
            try:
                raise LookupError(f"no case {text}")
            except LookupError as error:
                raise ValueError(f"bad payload {text}") from error
        case text if text is not None:
            raise ValueError(f"bad payload {text}")


@pytest.fixture
async def hostile(database: Database) -> AsyncIterator[Client]:
    receiver = FencedReceiver(complaining, database.store(setup=create_tables))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(receiver), base_url="http://receiver") as http:
        client = Client(http, database, receiver)
        await client.statuses(token(resource="app:first"))  # makes the tables
        yield client
    await receiver.close()


async def test_texts_of_all_kinds_are_stored_as_they_are(hostile: Client) -> None:
    odd = [HARMFUL, "ü\U0001f600", "\n\x1b[31m", "%s", "?", "tabhelm_operation", "a" * 512, "\U0001f600" * 512]
    sent = [operation(op_id, partition=op_id) for op_id in odd]
    shown = token(1, 1, resource=HARMFUL, domain=HARMFUL, stream=HARMFUL, owner=HARMFUL)
    assert await hostile.statuses(shown, *sent) == ["committed"] * len(odd)
    assert hostile.applied() == odd
    assert sorted(row[0] for row in hostile.query("SELECT op_id FROM tabhelm_operations")) == sorted(odd)
    marks = hostile.query("SELECT domain, resource, owner FROM tabhelm_marks WHERE resource <> 'app:first'")
    assert marks == [(HARMFUL, HARMFUL, HARMFUL)]
    assert (await hostile.batch(token(1, 1, resource=HARMFUL, domain=HARMFUL, stream=HARMFUL, owner="b"))).json()[
        "high_water"
    ] == {"epoch": 1, "seq": 1, "owner": HARMFUL}


@pytest.mark.parametrize("payload", [["reject", FORGED], ["retry", FORGED], ["reject", "\ud83d"], ["retry", "\ud83d"]])
async def test_reasons_that_quote_a_sender_can_be_stored_and_told(hostile: Client, payload: list[str]) -> None:
    answers = [(await hostile.batch(token(1, seq), operation("a", payload))).json() for seq in (1, 2)]
    assert answers[0] == answers[1]
    (result,) = answers[0]["results"]
    assert result["detail"].startswith("x\n2026" if payload[1] == FORGED else "\ufffd")
    assert "\0" not in result["detail"]


@pytest.mark.parametrize("payload", [FORGED, ["chain", FORGED], {FORGED: FORGED}])
async def test_an_applications_error_cannot_forge_lines_of_the_log(
    hostile: Client, lines: Lines, payload: object
) -> None:
    await hostile.statuses(token(resource="app:odd"), operation(FORGED.replace("\0", ""), payload))
    (record,) = lines.records
    assert all(harmless(line) for line in record.split("\n"))
    assert not any(line.startswith("2026") for line in record.split("\n"))
    assert "Traceback" in record and "complaining" in record and "forged" in record
    assert ("which caused:" in record) == (payload != FORGED and isinstance(payload, list))


async def test_a_handler_still_finds_the_exception(hostile: Client, caplog: pytest.LogCaptureFixture) -> None:
    await hostile.statuses(token(), operation("a", "anything"))
    (record,) = caplog.records
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


@quickly
@given(op_id=texts, partition=texts, payload=payloads, names=st.tuples(printable, printable, printable, printable))
@example(op_id=FORGED, partition=FORGED, payload=FORGED, names=('"', "\\", "'", ";"))
async def test_whatever_comes_answers_and_log_are_well_formed(
    hostile: Client, lines: Lines, op_id: str, partition: str, payload: object, names: tuple[str, ...]
) -> None:
    lines.records.clear()
    domain, resource, stream, owner = names
    shown = FencingToken(domain, resource, 1, stream, 1, owner)
    body = json.dumps({"operations": [operation(op_id, payload, partition)]})
    headers = {"Fencing-Token": token_header(shown), "Content-Type": "application/json"}
    answer = await hostile.http.post("/", content=body, headers=headers)
    assert answer.status_code in (200, 400, 409)
    assert answer.content.isascii() and answer.content.decode().isprintable(), "one line of JSON"
    assert answer.headers["x-content-type-options"] == "nosniff"
    kind = "application/json" if answer.status_code == 200 else "application/problem+json"
    assert answer.headers["content-type"] == kind
    for record in lines.records:
        assert all(harmless(line) for line in record.split("\n"))
    families = list(text_string_to_metric_families(hostile.receiver.metrics.prometheus()))
    assert {family.type for family in families} == {"counter", "histogram"}
    assert hostile.query("SELECT count(*) FROM applied")[0][0] >= 0, "the table is still there"


@SQLITE
@quickly
@given(header=st.binary(max_size=60), key=st.none() | st.binary(max_size=60), body=st.binary(max_size=80))
@example(header=FORGED.encode(), key=FORGED.encode(), body=FORGED.encode())
async def test_requests_of_any_bytes(
    hostile: Client, lines: Lines, header: bytes, key: bytes | None, body: bytes
) -> None:
    """Straight to the application: no web server would let such headers through."""
    lines.records.clear()
    headers = [(b"content-type", b"application/json"), (b"fencing-token", header)]
    headers += [] if key is None else [(b"idempotency-key", key)]
    status, content = await ask(hostile.receiver, "POST", "/", headers, body)
    assert status == 400 and content.isascii() and content.decode().isprintable()
    assert json.loads(content)["type"] == "urn:tabhelm:malformed"
    assert lines.records == [], "strangers cannot fill the log"


@SQLITE
@quickly
@given(body=st.binary(max_size=80) | st.text(max_size=80).map(str.encode) | payloads.map(json.dumps).map(str.encode))
async def test_bodies_of_any_bytes(hostile: Client, body: bytes) -> None:
    for key in (None, b'"key"'):
        headers = [(b"content-type", b"application/json"), (b"fencing-token", token_header(token()).encode())]
        headers += [] if key is None else [(b"idempotency-key", key)]
        status, content = await ask(hostile.receiver, "POST", "/", headers, body)
        assert status in (200, 400, 409, 413, 422, 503) and content.isascii() and content.decode().isprintable()


@SQLITE
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (token_header(token()), token_header(token(9, 9))),
        ('"app:que', 'ue";domain="d1";epoch=1;stream="lane-0";seq=1;owner="tab-a"'),  # joined, they are one token
    ],
)
async def test_a_header_that_comes_twice(client: Client, first: str, second: str) -> None:
    headers = [("Content-Type", "application/json"), ("Fencing-Token", first), ("fencing-token", second)]
    answer = await client.http.post("/", content='{"operations":[]}', headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:tabhelm:malformed")
    assert "Fencing-Token came 2 times" in answer.json()["detail"]
    good = [("Content-Type", "application/json"), ("Fencing-Token", token_header(token()))]
    keys = [("Idempotency-Key", '"a'), ("Idempotency-Key", 'b"')]
    answer = await client.http.post("/", content="{}", headers=[*good, *keys])
    assert "Idempotency-Key came 2 times" in answer.json()["detail"]
    assert client.receiver.metrics.snapshot()["totals"]["malformed"] == 2
    assert await client.statuses(token(), operation("a")) == ["committed"], "nothing was used up"


@SQLITE
async def test_a_key_that_is_too_long(client: Client) -> None:
    for length, expected in ((512, 200), (513, 400), (9000, 400)):
        assert (await client.single(token(1, length), "k" * length, {})).status_code == expected


@SQLITE
async def test_what_is_too_large_or_no_json_is_counted(make_client: MakeClient) -> None:
    client = make_client(max_body=100, max_operations=1)
    good = {"Content-Type": "application/json", "Fencing-Token": token_header(token())}
    await client.http.post("/", content="x" * 101, headers=good)
    await client.batch(token(), {}, {})
    await client.http.post("/", content="x", headers={**good, "Content-Type": "text/plain"})
    assert client.receiver.metrics.snapshot()["totals"]["malformed"] == 3


@SQLITE
@pytest.mark.parametrize("subject", ["", None, 7, "a\0", "\ud800"])
async def test_a_subject_that_no_database_takes_is_a_mistake_of_the_application(
    make_client: MakeClient, subject: Any
) -> None:
    with pytest.raises(TypeError, match="authenticate must return"):
        await make_client(authenticate=lambda scope: subject).batch(token())


# -- counters ----------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=20), st.integers(1, 9), max_size=5), st.lists(st.floats(0, 100), max_size=9))
@example({'a"b\\c\nd': 1, "\\n": 2, "": 3}, [0.001, 10.0, 10.5])
def test_prometheus_reads_the_numbers_back(counts: dict[str, int], seconds: list[float]) -> None:
    metrics = ReceiverMetrics()
    for resource, times in counts.items():
        metrics.count("stale", resource, times)
    for each in seconds:
        metrics.took(each)
    families = {family.name: family for family in text_string_to_metric_families(metrics.prometheus())}
    assert len(families) == 13 and all(family.documentation for family in families.values())
    stale = {sample.labels["resource"]: sample.value for sample in families["tabhelm_receiver_stale"].samples}
    assert stale == counts
    found = families["tabhelm_receiver_request_seconds"].samples
    buckets = {float(each.labels["le"]): each.value for each in found if each.name.endswith("_bucket")}
    assert buckets == {bound: sum(each <= bound for each in seconds) for bound in buckets}
    assert {each.value for each in found if each.name.endswith("_count")} == {len(seconds)}


@SQLITE
async def test_metrics_endpoint(client: Client) -> None:
    await client.statuses(token(), operation("a"))
    await client.batch(token())
    transport = httpx.ASGITransport(client.receiver.metrics.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://metrics") as http:
        answer = await http.get("/")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'tabhelm_receiver_accepted_total{resource="app:queue"} 1\n' in answer.text
        assert "tabhelm_receiver_request_seconds_count 2\n" in answer.text
        assert (await http.head("/")).content == b""
        assert (await http.post("/")).status_code == 405
    with pytest.raises(RuntimeError, match="lifespan"):
        await client.receiver.metrics.app({"type": "lifespan"}, no_receive, no_send)


async def no_receive() -> dict[str, Any]:
    raise AssertionError


async def no_send(message: object) -> None:
    raise AssertionError


def test_escapes() -> None:
    assert escaped("a\nb\x1b[0m\u2028\ud800ü\\") == "a\\nb\\x1b[0m\\u2028\\ud800ü\\"


@SQLITE
async def test_a_body_that_never_ends_its_text_is_read_once(client: Client) -> None:
    """Begun afresh at each of its quotes, this one would keep the server's event loop for a day."""
    body = '{"operations":[' + "[]," * 501 + '"' + '\\"' * 2_000_000
    headers = {"Content-Type": "application/json", "Fencing-Token": token_header(token())}
    async with asyncio.timeout(30):
        answer = await client.http.post("/", content=body, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:tabhelm:malformed")
