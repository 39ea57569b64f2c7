"""A receiver in this process with its database, and one that runs in processes of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import Database, Postgres, Sqlite, apply

from tabhelm.fencing.http_form import idempotency_key_header, token_header
from tabhelm.fencing.token import FencingToken
from tabhelm.server import FencedReceiver
from tabhelm_build.serving import ServerProcess


def token(epoch: int = 1, seq: int = 1, *, owner: str = "tab-a", **more: str) -> FencingToken:
    """A token; ``domain``, ``resource`` and ``stream`` may be given."""
    fields = {"domain": "d1", "resource": "app:queue", "stream": "lane-0", **more}
    return FencingToken(epoch=epoch, seq=seq, owner_id=owner, **fields)


def operation(op_id: str, payload: Any = None, partition: str = "p") -> dict[str, Any]:
    return {"op_id": op_id, "partition": partition, "payload": payload}


class Client:
    """Sends to one receiver, and reads its database behind its back."""

    def __init__(self, http: httpx.AsyncClient, database: Database, receiver: FencedReceiver[Any]) -> None:
        self.http = http
        self.database = database
        self.receiver = receiver

    async def batch(self, token: FencingToken, *operations: dict[str, Any], **headers: str) -> httpx.Response:
        more = {"Fencing-Token": token_header(token), "Content-Type": "application/json", **headers}
        # httpx's own JSON cannot spell half a character.
        return await self.http.post("/", content=json.dumps({"operations": list(operations)}), headers=more)

    async def single(self, token: FencingToken, key: str, payload: Any) -> httpx.Response:
        headers = {"Fencing-Token": token_header(token), "Idempotency-Key": idempotency_key_header(key)}
        return await self.http.post("/", json=payload, headers=headers)

    async def statuses(self, token: FencingToken, *operations: dict[str, Any]) -> list[str]:
        answer = await self.batch(token, *operations)
        assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        assert [result["op_id"] for result in results] == [each["op_id"] for each in operations]
        return [result["status"] for result in results]

    def applied(self) -> list[str]:
        """The ids of the effects, in order."""
        return [row[0] for row in self.query("SELECT op_id FROM applied ORDER BY n")]

    def query(self, statement: str) -> list[Any]:
        return self.database.query(statement)


MakeClient = Callable[..., Client]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A new database of each kind. ``pytestmark = SQLITE`` for tests to which it does not matter."""
    made: Database
    if request.param == "postgres":
        made = Postgres(request.getfixturevalue("postgres_database"))
    else:
        made = Sqlite(tmp_path / "effects.db")
    yield made
    made.close()


SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
POSTGRES = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@pytest.fixture
async def make_client(database: Database) -> AsyncIterator[MakeClient]:
    """Receivers on one database; keyword arguments go to ``FencedReceiver``."""
    made: list[Client] = []

    def make(**options: Any) -> Client:
        store = database.store(**options.pop("store", {}))
        receiver = FencedReceiver(options.pop("apply", apply), store, **options)
        transport = httpx.ASGITransport(receiver)
        made.append(Client(httpx.AsyncClient(transport=transport, base_url="http://receiver"), database, receiver))
        return made[-1]

    yield make
    for client in made:
        await client.http.aclose()
        await client.receiver.close()


@pytest.fixture
def client(make_client: MakeClient) -> Client:
    return make_client()


@pytest.fixture
def start_process() -> Iterator[Callable[..., ServerProcess]]:
    """Starts ``receiver_process.py`` on a database."""
    started: list[ServerProcess] = []

    def start(
        database: Database, busy_timeout: float = 5.0, crash: str = "never", clock: Path | None = None
    ) -> ServerProcess:
        script = Path(__file__).with_name("receiver_process.py")
        arguments = [str(script), database.kind, database.address, str(busy_timeout), crash]
        started.append(ServerProcess(arguments + ([] if clock is None else [str(clock)])))
        return started[-1]

    yield start
    for process in started:
        process.close()
