"""Real web servers in real processes on one real database file: contention, crashes, a locked file."""

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
from receiver_kit import Process, operation, token

from tabhelm.fencing.http_form import token_header
from tabhelm.fencing.token import FencingToken

Start = Callable[..., Process]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "effects.db"


async def send(http: httpx.AsyncClient, url: str, shown: FencingToken, *operations: dict[str, Any]) -> httpx.Response:
    return await http.post(url, json={"operations": operations}, headers={"Fencing-Token": token_header(shown)})


def rows(database: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


async def test_owners_that_contend_through_several_processes(database: Path, start_process: Start) -> None:
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
    log = rows(database, "SELECT op_id, epoch, owner, seq FROM log ORDER BY n")
    assert sorted(row[0] for row in log) == sorted(acknowledged), "each once, and none that was refused"
    owners: defaultdict[int, set[str]] = defaultdict(set)
    for _, epoch, owner, _ in log:
        owners[epoch].add(owner)
    assert all(len(found) == 1 for found in owners.values()), "one owner an epoch"
    order = [(epoch, seq) for _, epoch, _, seq in log]
    assert order == sorted(order), "epochs never go back, nor does a stream"
    assert order[-1] == (3, 25), "the newest epoch got all its writes in"
    assert [row[0] for row in rows(database, "SELECT n FROM total ORDER BY rowid")] == list(range(1, len(log) + 1))


async def test_same_operation_through_two_processes_at_once(database: Path, start_process: Start) -> None:
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
    assert rows(database, "SELECT count(*) FROM log") == [(20,)]


async def test_processes_that_open_a_new_file_at_once(database: Path, start_process: Start) -> None:
    servers = [start_process(database) for _ in range(4)]
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        answers = await asyncio.gather(
            *(
                send(http, server.url, token(1, 1, stream=f"lane-{n}"), operation(f"op{n}"))
                for n, server in enumerate(servers)
            )
        )
    assert [answer.status_code for answer in answers] == [200] * 4
    assert rows(database, "SELECT count(*) FROM log") == [(4,)]


@pytest.mark.parametrize(
    ("crash", "stands", "shown", "status"),
    [
        ("answering", ["first", "fatal"], token(1, 2), "duplicate"),
        ("applying", [], token(1, 1), "committed"),  # its mark was undone as well: the same token is new again
    ],
)
async def test_killed(
    database: Path, start_process: Start, crash: str, stands: list[str], shown: FencingToken, status: str
) -> None:
    """Killed before its answer, the effects stand and the repetition is a duplicate. Killed inside, nothing stands."""
    server = start_process(database, crash=crash)
    sent = [operation("first", partition="1"), operation("fatal", partition="2")]
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        with pytest.raises(httpx.TransportError):
            await send(http, server.url, token(1, 1), *sent)
        assert server.died() == -signal.SIGKILL
        assert [op_id for (op_id,) in rows(database, "SELECT op_id FROM log ORDER BY n")] == stands
        answer = await send(http, start_process(database).url, shown, *sent)
    assert [result["status"] for result in answer.json()["results"]] == [status, status]
    assert rows(database, "SELECT op_id FROM log ORDER BY n") == [("first",), ("fatal",)]


async def test_file_that_somebody_else_keeps_locked(database: Path, start_process: Start) -> None:
    server = start_process(database, busy_timeout=0.2)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        assert (await send(http, server.url, token(1, 1), operation("a"))).status_code == 200
        other = sqlite3.connect(database, isolation_level=None)
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


async def test_locked_file_does_not_block_the_event_loop(database: Path, start_process: Start) -> None:
    server = start_process(database, busy_timeout=20)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        assert (await send(http, server.url, token(1, 1), operation("a"))).status_code == 200
        other = sqlite3.connect(database, isolation_level=None)
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
