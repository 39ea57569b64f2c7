"""Lease services in real processes on one real database: contention, a crash before the answer, waiting across them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tabhelm_build.serving import ServerProcess


@dataclass
class Service:
    """``lease_process.py``; ``url`` is that of the lease that all here want."""

    process: ServerProcess

    @property
    def url(self) -> str:
        return f"{self.process.url}/leases/app:job"


Start = Callable[[], Service]


@pytest.fixture(params=["sqlite", "postgres"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    kind = request.param
    database = str(tmp_path / "leases.db") if kind == "sqlite" else request.getfixturevalue("postgres_database")
    script = str(Path(__file__).with_name("lease_process.py"))
    started: list[Service] = []

    def begin() -> Service:
        started.append(Service(ServerProcess([script, kind, database])))
        return started[-1]

    yield begin
    for service in started:
        service.process.close()


async def ask(http: httpx.AsyncClient, url: str, candidate: str, ttl_ms: int = 1_000, **more: Any) -> httpx.Response:
    return await http.post(url, json={"candidate": candidate, "ttl_ms": ttl_ms, **more})


async def test_candidates_that_contend_through_several_processes(start: Start) -> None:
    """Each asks all of the servers in turn, gives back what it got, and asks again. No grant comes twice, and nobody is
    given what somebody else has not given back."""
    urls = [start().url for _ in range(3)]
    grants: list[tuple[int, str]] = []
    holding: list[str] = []

    async def compete(name: str) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            got = 0
            for turn in range(400):
                candidate = f"{name}-{got}"
                answer = await ask(http, urls[turn % 3], candidate, 60_000)
                if answer.status_code == 409:
                    await asyncio.sleep(0.002)
                    continue
                assert answer.status_code == 200, answer.text
                assert holding == [], f"{candidate} was given what {holding} has"
                holding.append(candidate)
                token = answer.json()["token"]
                grants.append((token["epoch"], candidate))
                again = await ask(http, urls[(turn + 1) % 3], candidate, 60_000)
                assert (again.json()["token"]["epoch"], again.json()["token"]["seq"]) == (token["epoch"], 2)
                holding.remove(candidate)
                assert (await http.delete(urls[turn % 3], params={"candidate": candidate})).json() == {"released": True}
                got += 1
                if got == 4:
                    return

    await asyncio.gather(*(compete(name) for name in "abcd"))
    assert len(grants) == 16
    assert [epoch for epoch, _ in grants] == list(range(1, 17)), "each epoch once, in order"


async def test_a_token_that_nobody_heard_of_is_never_given_again(start: Start) -> None:
    """The process dies after the grant is durable and before it is told."""
    first = start()
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        with pytest.raises(httpx.TransportError):
            await ask(http, first.url, "fatal-1", 1_000)
        assert first.process.died() == -signal.SIGKILL
        second = start()
        refused = await ask(http, second.url, "b")
        assert refused.status_code in (200, 409)
        answer = await ask(http, second.url, "b", wait_ms=5_000)
        assert answer.status_code == 200 and answer.json()["token"]["epoch"] == 2


async def test_who_waits_at_one_process_is_answered_when_another_gives_it_back(start: Start) -> None:
    one, two = start(), start()
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        assert (await ask(http, one.url, "a", 60_000)).status_code == 200
        waiting = asyncio.create_task(ask(http, two.url, "b", 60_000, wait_ms=8_000))
        await http.get(two.url)
        await http.delete(one.url, params={"candidate": "a"})
        began = time.monotonic()
        answer = await waiting
        assert answer.status_code == 200 and answer.json()["token"]["epoch"] == 2
        assert time.monotonic() - began < 4.0


async def test_a_server_that_ends_does_not_wait_for_who_waits(start: Start) -> None:
    server = start()
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        assert (await ask(http, server.url, "a", 60_000)).status_code == 200
        waiting = asyncio.create_task(ask(http, server.url, "b", 60_000, wait_ms=10_000))
        await http.get(server.url)
        began = time.monotonic()
        await asyncio.to_thread(server.process.close)
        assert time.monotonic() - began < 8.0
        await asyncio.gather(waiting, return_exceptions=True)
