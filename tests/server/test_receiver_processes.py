"""Real web servers in real processes on one real database: contention, crashes, locks, clocks that go back."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import Database
from receiver_kit import SQLITE, operation, token

from tabhelm.fencing.http_form import token_header
from tabhelm.fencing.token import FencingToken
from tabhelm_build.serving import ServerProcess

Start = Callable[..., ServerProcess]


async def send(http: httpx.AsyncClient, url: str, shown: FencingToken, *operations: dict[str, Any]) -> httpx.Response:
    return await http.post(url, json={"operations": operations}, headers={"Fencing-Token": token_header(shown)})


async def test_owners_that_contend_through_several_processes(database: Database, start_process: Start) -> None:
    """Six owners, two of each epoch number, write through three servers at once, each through all of them."""
    servers = [start_process(database) for _ in range(3)]
    acknowledged: list[str] = []

    async def write(owner: str, epoch: int) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            for seq in range(1, 26):
                url = servers[(seq + epoch) % 3].url
                sent = [operation(f"{owner}-{seq}-{n}", seq, f"{owner}-{n % 2}") for n in range(4)]
                answer = await send(http, url, token(epoch, seq, owner=owner), *sent)
                assert answer.status_code in (200, 409), answer.text
                if answer.status_code == 409:
                    seen = answer.json()["high_water"]
                    assert (seen["epoch"], seen["owner"] != owner) >= (epoch, True)
                    return
                acknowledged.extend(result["op_id"] for result in answer.json()["results"])

    await asyncio.gather(*(write(f"{name}{epoch}", epoch) for epoch in (1, 2, 3) for name in "ab"))
    log = database.query("SELECT op_id, epoch, owner, seq FROM log ORDER BY n")
    assert sorted(row[0] for row in log) == sorted(acknowledged), "each once, and none that was refused"
    owners: defaultdict[int, set[str]] = defaultdict(set)
    for _, epoch, owner, _ in log:
        owners[epoch].add(owner)
    assert all(len(found) == 1 for found in owners.values()), "one owner an epoch"
    order = [(epoch, seq) for _, epoch, _, seq in log]
    assert order == sorted(order), "epochs never go back, nor does a stream"
    assert order[-1] == (3, 25), "the newest epoch got all its writes in"
    assert [row[0] for row in database.query("SELECT n FROM total ORDER BY n")] == list(range(1, len(log) + 1))


async def test_same_operation_through_two_processes_at_once(database: Database, start_process: Start) -> None:
    servers = [start_process(database) for _ in range(2)]
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        for n in range(20):
            answers = await asyncio.gather(
                *(
                    send(http, server.url, token(1, n + 1, stream=stream), operation(f"op{n}"))
                    for server, stream in zip(servers, ("lane-0", "lane-1"), strict=True)
                )
            )
            found = sorted(answer.json()["results"][0]["status"] for answer in answers)
            assert found == ["committed", "duplicate"]
    assert database.query("SELECT count(*) FROM log") == [(20,)]


async def test_processes_that_open_a_new_database_at_once(database: Database, start_process: Start) -> None:
    servers = [start_process(database) for _ in range(4)]
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        answers = await asyncio.gather(
            *(
                send(http, server.url, token(1, 1, stream=f"lane-{n}"), operation(f"op{n}"))
                for n, server in enumerate(servers)
            )
        )
    assert [answer.status_code for answer in answers] == [200] * 4
    assert database.query("SELECT count(*) FROM log") == [(4,)]


@pytest.mark.parametrize(
    ("crash", "stands", "shown", "status"),
    [
        ("answering", ["first", "fatal"], token(1, 2), "duplicate"),
        ("applying", [], token(1, 1), "committed"),  # its mark was undone as well: the same token is new again
    ],
)
async def test_killed(
    database: Database, start_process: Start, crash: str, stands: list[str], shown: FencingToken, status: str
) -> None:
    """Killed before its answer, the effects stand and the repetition is a duplicate. Killed inside, nothing stands."""
    server = start_process(database, crash=crash)
    sent = [operation("first", partition="1"), operation("fatal", partition="2")]
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        with pytest.raises(httpx.TransportError):
            await send(http, server.url, token(1, 1), *sent)
        assert server.died() == -signal.SIGKILL
        assert [op_id for (op_id,) in database.query("SELECT op_id FROM log ORDER BY n")] == stands
        answer = await send(http, start_process(database).url, shown, *sent)
    assert [result["status"] for result in answer.json()["results"]] == [status, status]
    assert database.query("SELECT op_id FROM log ORDER BY n") == [("first",), ("fatal",)]


@SQLITE
async def test_file_that_somebody_else_keeps_locked(database: Database, start_process: Start) -> None:
    server = start_process(database, busy_timeout=0.2)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        assert (await send(http, server.url, token(1, 1), operation("a"))).status_code == 200
        other = sqlite3.connect(database.address, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            answer = await send(http, server.url, token(1, 2), operation("b"))
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:tabhelm:busy")
            assert int(answer.headers["retry-after"]) >= 1
            other.execute("ROLLBACK")
        finally:
            other.close()
        answer = await send(http, server.url, token(1, 2), operation("b"))
        assert answer.json()["results"] == [{"op_id": "b", "status": "committed"}], (
            "the same token: nothing was written"
        )


@SQLITE
async def test_locked_file_does_not_block_the_event_loop(database: Database, start_process: Start) -> None:
    server = start_process(database, busy_timeout=20)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        assert (await send(http, server.url, token(1, 1), operation("a"))).status_code == 200
        other = sqlite3.connect(database.address, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(send(http, server.url, token(1, 2), operation("b")))
            for _ in range(20):
                assert (await http.get(server.url)).status_code == 405
            assert not waiting.done()
            other.execute("ROLLBACK")
        finally:
            other.close()
        assert (await waiting).status_code == 200


async def test_many_resources_through_several_processes(database: Database, start_process: Start) -> None:
    """Each resource's writes come in order and one at a time, whoever else writes."""
    servers = [start_process(database) for _ in range(2)]
    resources = [f"app:job-{n}" for n in range(8)]

    async def write(resource: str) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            for seq in range(1, 16):
                shown = token(1, seq, resource=resource)
                sent = [operation(f"{resource}-{seq}-{n}", seq, f"{n}") for n in range(3)]
                answer = await send(http, servers[seq % 2].url, shown, *sent)
                assert [each["status"] for each in answer.json()["results"]] == ["committed"] * 3

    await asyncio.gather(*map(write, resources))
    for resource in resources:
        log = database.query(f"SELECT seq FROM log WHERE resource = '{resource}' ORDER BY n")
        assert [seq for (seq,) in log] == [seq for seq in range(1, 16) for _ in range(3)]
        counted = database.query(f"SELECT n FROM total WHERE resource = '{resource}' ORDER BY n")
        assert [n for (n,) in counted] == list(range(1, 46)), "no two of them read the same total"


async def test_same_operations_under_two_resources_at_once(database: Database, start_process: Start) -> None:
    """An operation id is one subject's, not one resource's: decided on twice at once, one of them looks again."""
    servers = [start_process(database) for _ in range(2)]
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        for seq in range(1, 16):
            sent = [operation(f"{seq}-{n}", n, f"{n}") for n in range(5)]
            answers = await asyncio.gather(
                send(http, servers[0].url, token(1, seq, resource="app:one"), *sent),
                send(http, servers[1].url, token(1, seq, resource="app:two"), *reversed(sent)),
            )
            by_op: defaultdict[str, list[str]] = defaultdict(list)
            for answer in answers:
                assert answer.status_code == 200, answer.text
                for result in answer.json()["results"]:
                    by_op[result["op_id"]].append(result["status"])
            assert all(sorted(statuses) == ["committed", "duplicate"] for statuses in by_op.values())
    assert database.query("SELECT count(*), count(DISTINCT op_id) FROM log") == [(75, 75)]


async def test_clock_that_is_set_back(database: Database, start_process: Start, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("1000000")
    server = start_process(database, clock=clock)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        assert (await send(http, server.url, token(2, 1), operation("a"))).status_code == 200
        for seq, now in enumerate(("990000", "1000099", "0"), 2):
            clock.write_text(now)
            many = [operation(f"{seq}-{n}", partition=f"{n}") for n in range(300)]
            answer = await send(http, server.url, token(2, seq), operation("a"), *many)
            assert [each["status"] for each in answer.json()["results"]] == ["duplicate"] + ["committed"] * 300
            old = await send(http, server.url, token(1, 99, owner="old"), operation("late"))
            assert old.status_code == 409
        # The clock is right again, and every process has swept: nothing of the time in which it was behind is gone.
        clock.write_text("1000098")
        for each, seqs in ((server, (5, 6)), (start_process(database, clock=clock), (7, 8))):
            for seq, of in zip(seqs, (2, 4), strict=True):
                many = [operation(f"{of}-{n}", partition=f"{n}") for n in range(300)]
                answer = await send(http, each.url, token(2, seq), operation("a"), *many, operation(f"new-{seq}"))
                found = [result["status"] for result in answer.json()["results"]]
                assert found == ["duplicate"] * 301 + ["committed"]
    assert database.query("SELECT count(*) FROM log WHERE op_id IN ('a', 'late')") == [(1,)]
