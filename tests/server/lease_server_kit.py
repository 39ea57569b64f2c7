"""A lease service in this process, with clocks of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from tabhelm.server import Denied, LeaseService, LeaseStore, MemoryLeaseStore
from tabhelm.server.asgi import Scope


class Times:
    """``wall`` is the store's clock, ``monotonic`` the process's."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000.0
        self.monotonic = 500.0

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


def by_header(scope: Scope) -> str:
    """Who sends ``x-user``."""
    for name, value in scope["headers"]:
        if name == b"x-user":
            if value == b"banned":
                raise Denied(403, "not you")
            return str(value.decode())
    raise Denied(401, "who are you?")


class Leases:
    """Asks one service."""

    def __init__(self, service: LeaseService, times: Times) -> None:
        self.service = service
        self.times = times
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://service")

    async def ask(
        self, candidate: Any = "a", ttl_ms: Any = 15_000, resource: str = "app:job", user: str = "u", **more: Any
    ) -> httpx.Response:
        body = {"candidate": candidate, "ttl_ms": ttl_ms, **more}
        return await self.http.post(f"/api/leases/{resource}", json=body, headers={"x-user": user})

    async def granted(self, candidate: str = "a", **more: Any) -> tuple[int, int]:
        """The epoch and seq of the token that it must be given."""
        answer = await self.ask(candidate, **more)
        assert answer.status_code == 200, answer.text
        token = answer.json()["token"]
        assert token["owner"] == candidate
        return token["epoch"], token["seq"]

    async def held(self, candidate: str = "b", **more: Any) -> tuple[str, int]:
        """By whom, and for how many milliseconds: it must not be given."""
        answer = await self.ask(candidate, **more)
        assert answer.status_code == 409, answer.text
        problem = answer.json()
        assert problem["type"] == "urn:tabhelm:lease-held"
        assert answer.headers["content-type"] == "application/problem+json"
        return problem["holder"], problem["expires_in_ms"]

    async def release(self, candidate: str = "a", resource: str = "app:job", user: str = "u") -> bool:
        answer = await self.http.delete(
            f"/api/leases/{resource}", params={"candidate": candidate}, headers={"x-user": user}
        )
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["released"])


MakeLeases = Callable[..., Leases]


@pytest.fixture
async def make_leases() -> AsyncIterator[MakeLeases]:
    """Services; keyword arguments go to ``LeaseService``. ``times`` and ``store`` may be those of another one."""
    made: list[Leases] = []

    def make(times: Times | None = None, store: LeaseStore | None = None, **options: Any) -> Leases:
        times = times or Times()
        store = store or MemoryLeaseStore(clock=lambda: times.wall)
        options.setdefault("authenticate", by_header)
        made.append(Leases(LeaseService(store, monotonic=lambda: times.monotonic, **options), times))
        return made[-1]

    yield make
    for each in made:
        await each.http.aclose()
        await each.service.close()


@pytest.fixture
def leases(make_leases: MakeLeases) -> Leases:
    return make_leases()
