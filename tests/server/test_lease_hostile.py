"""What a candidate sends appears in SQL, logs, answers and metrics as text alone, whatever it holds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_from_bytes

import httpx
import psycopg
import pytest
from hostile_kit import FORGED, HARMFUL, Lines, ask, harmless, lines, payloads, quickly, texts
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tabhelm.server import LeaseMetrics, LeaseService, LeaseStore, PostgresLeaseStore, SqliteLeaseStore

__all__ = ["lines"]
JSON = [(b"content-type", b"application/json")]
GOOD = b'{"candidate": "a", "ttl_ms": 15000}'
PATH = "/leases/app:job"


@pytest.fixture(params=["sqlite", "postgres"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LeaseService]:
    store: LeaseStore
    if request.param == "sqlite":
        store = SqliteLeaseStore(tmp_path / "leases.db")
    else:
        store = PostgresLeaseStore(request.getfixturevalue("postgres_database"))
    made = LeaseService(store, max_wait=0.0)
    yield made
    await made.close()


SQLITE = pytest.mark.parametrize("service", ["sqlite"], indirect=True)


def judged(answer: tuple[int, bytes], found: Lines, service: LeaseService) -> int:
    """The status of an answer that is as it must be, whatever was asked."""
    status, content = answer
    assert status in (200, 400, 403, 409, 413, 415, 422), content
    assert content.isascii() and content.decode().isprintable(), "one line of JSON"
    assert isinstance(json.loads(content), dict)
    assert found.records == [], "strangers cannot fill the log"
    families = list(text_string_to_metric_families(service.metrics.prometheus()))
    assert {family.type for family in families} == {"counter", "gauge"}
    return status


@quickly
@given(candidate=texts, resource=texts, more=st.dictionaries(texts, payloads, max_size=3))
@example(candidate=FORGED, resource=FORGED, more={FORGED: FORGED})
@example(candidate=HARMFUL, resource="app:job", more={})
async def test_texts_of_all_kinds(
    service: LeaseService, lines: Lines, candidate: str, resource: str, more: dict[str, Any]
) -> None:
    lines.records.clear()
    body = json.dumps({**more, "candidate": candidate, "ttl_ms": 15_000}).encode()
    path = "/leases/" + resource
    raw = ("/leases/" + quote(resource, safe="", errors="surrogatepass")).encode()
    status = judged(await ask(service, "POST", path, JSON, body, raw_path=raw), lines, service)
    query = f"candidate={quote(candidate, errors='surrogatepass')}".encode()
    released = await ask(service, "DELETE", path, [], b"", raw_path=raw, query_string=query)
    assert judged(released, lines, service) in (200, 400)
    if status == 200 and not json.loads(released[1])["released"]:
        raise AssertionError("what was given can be given back by the same name")


@quickly
@given(body=st.binary(max_size=80) | st.text(max_size=80).map(str.encode) | payloads.map(json.dumps).map(str.encode))
@example(body=FORGED.encode())
@example(body=b'{"candidate": "a", "ttl_ms": Infinity}')
@example(body=b'{"candidate": "a", "ttl_ms": 1e999}')
@example(body=b'{"candidate": "a", "ttl_ms": 15000, "above": 1e308}')
@example(body=b'{"candidate": "a", "ttl_ms": ' + b"9" * 4000 + b"}")
async def test_bodies_of_any_bytes(service: LeaseService, lines: Lines, body: bytes) -> None:
    lines.records.clear()
    assert judged(await ask(service, "POST", PATH, JSON, body), lines, service) == 400
    judged(await ask(service, "DELETE", PATH, JSON, body, query_string=b"candidate=a"), lines, service)


@SQLITE
@quickly
@given(path=st.binary(max_size=60), query=st.binary(max_size=60), raw=st.booleans())
@example(path=FORGED.encode(), query=b"candidate=" + FORGED.encode(), raw=True)
@example(path=b"/%", query=b"candidate=%", raw=True)
@example(path=b"", query=b"candidate=%ff%00&candidate", raw=False)
async def test_paths_and_queries_of_any_bytes(
    service: LeaseService, lines: Lines, path: bytes, query: bytes, raw: bool
) -> None:
    lines.records.clear()
    more: dict[str, Any] = {"query_string": query} | ({"raw_path": path} if raw else {})
    shown = path.decode("utf-8", "replace")
    for method, body in (("POST", GOOD), ("DELETE", b"")):
        assert judged(await ask(service, method, shown, JSON, body, **more), lines, service) in (200, 400, 409)
    good = {"query_string": query}
    assert judged(await ask(service, "DELETE", PATH, [], b"", **good), lines, service) in (200, 400)


@SQLITE
@quickly
@given(name=st.binary(max_size=30), value=st.binary(max_size=60), method=st.sampled_from(["POST", "DELETE"]))
@example(name=b"content-type", value=FORGED.encode(), method="POST")
@example(name=b"content-length", value="\u00b2".encode("latin-1"), method="POST")
@example(name=b"content-length", value=b"9" * 5000, method="POST")
@example(name=b"content-encoding", value=FORGED.encode(), method="POST")
async def test_headers_of_any_bytes(
    service: LeaseService, lines: Lines, name: bytes, value: bytes, method: str
) -> None:
    lines.records.clear()
    for headers in ([(name, value)], [*JSON, (name, value)]):
        answer = await ask(service, method, PATH, headers, GOOD, query_string=b"candidate=a")
        judged(answer, lines, service)


async def test_a_candidate_is_stored_and_told_as_it_is(service: LeaseService) -> None:
    body = json.dumps({"candidate": HARMFUL, "ttl_ms": 15_000}).encode()
    status, content = await ask(service, "POST", PATH, JSON, body)
    assert status == 200 and json.loads(content)["token"]["owner"] == HARMFUL
    status, content = await ask(service, "POST", PATH, JSON, GOOD)
    assert status == 409 and json.loads(content)["holder"] == HARMFUL
    query = b"candidate=" + quote_from_bytes(HARMFUL.encode()).encode()
    assert await ask(service, "DELETE", PATH, [], b"", query_string=query) == (200, b'{"released":true}')


async def test_a_database_that_fails_forges_no_line_of_the_log(lines: Lines) -> None:
    """Its error may quote what was asked for."""

    class Failing(SqliteLeaseStore):
        async def change(self, key: Any, decide: Any, most: int) -> Any:
            raise psycopg.DataError(f"invalid value {FORGED}")

    service = LeaseService(Failing(":memory:"))
    status, content = await ask(service, "POST", PATH, JSON, GOOD)
    assert status == 500 and b"forged" not in content
    (record,) = lines.records
    assert all(harmless(line) for line in record.split("\n"))
    assert not any(line.startswith("2026") for line in record.split("\n"))
    await service.close()


# -- counters ----------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=20), st.integers(1, 9), max_size=5), st.integers(0, 9))
@example({'a"b\\c\nd': 1, "\\n": 2, "": 3}, 1)
def test_prometheus_reads_the_numbers_back(counts: dict[str, int], waiting: int) -> None:
    metrics = LeaseMetrics()
    for resource, times in counts.items():
        metrics.count("taken-over", resource, times)
    metrics.waiting = waiting
    families = {family.name: family for family in text_string_to_metric_families(metrics.prometheus())}
    assert len(families) == 10 and all(family.documentation for family in families.values())
    taken_over = families["tabhelm_lease_taken_over"]
    assert {each.labels["resource"]: each.value for each in taken_over.samples} == counts
    (sample,) = families["tabhelm_lease_waiting"].samples
    assert sample.value == waiting


async def test_metrics_endpoint() -> None:
    service = LeaseService(SqliteLeaseStore(":memory:"))
    await ask(service, "POST", PATH, JSON, GOOD)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(service.metrics.app), base_url="http://metrics") as http:
        answer = await http.get("/")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'tabhelm_lease_granted_total{resource="app:job"} 1\n' in answer.text
    await service.close()
