"""What docs/receiver.md and docs/leases.md show is run, each as it stands there."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from databases import Database, Sqlite
from receiver_kit import MakeClient, operation, token

from tabhelm.fencing.http_form import token_header
from tabhelm.server.asgi import Scope

DOCS = Path(__file__).resolve().parents[2] / "docs"


def snippets(page: str, language: str) -> list[str]:
    """The code blocks of a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


async def post(http: httpx.AsyncClient, shown: Any, *operations: dict[str, Any], **more: str) -> httpx.Response:
    return await http.post("/", json={"operations": operations}, headers={"Fencing-Token": token_header(shown), **more})


async def test_first_snippet_of_the_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippets("receiver.md", "python")[0], names)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(names["app"]), base_url="http://receiver") as http:
        await post(http, token(1, 1))
        with sqlite3.connect("effects.db") as connection:
            connection.execute("INSERT INTO cases VALUES ('42', 'Pump 6')")
        connection.close()
        answer = await post(
            http,
            token(1, 2),
            operation("a", {"id": "42", "title": "Pump 7"}, "42"),
            operation("b", {"id": "43", "title": "Pump 8"}, "43"),
        )
    results = answer.json()["results"]
    assert [result["status"] for result in results] == ["committed", "rejected"]
    assert results[1]["detail"] == "there is no such case"
    await names["app"].close()


async def test_snippets_about_who_sends(database: Database) -> None:
    """``authenticate`` and ``owns`` as they stand there, in front of an ``apply`` and a store of the test's."""
    authenticate, owns = snippets("receiver.md", "python")[1:3]
    applied: list[str] = []
    names: dict[str, Any] = {
        "apply": lambda effect, connection: applied.append(effect.subject),
        "store": database.store(),
    }
    exec("from tabhelm.server import FencedReceiver\n" + authenticate + owns, names)
    receiver, user = names["receiver"], ""

    async def with_session(scope: Scope, receive: Any, send: Any) -> None:
        scope["session"] = {"user": user} if user else {}
        await receiver(scope, receive, send)

    shown = token(1, 1, resource="regcase:offline-queue:mutations:user:ann")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(with_session), base_url="http://receiver") as http:
        for user, status in (("", 401), ("bob", 403), ("ann", 200)):  # noqa: B007
            assert (await post(http, shown, operation("a"))).status_code == status
    assert applied == ["ann"]
    await receiver.close()


async def test_first_snippet_of_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"authenticate": lambda scope: "ann"}
    exec(snippets("leases.md", "python")[0], names)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(names["leases"]), base_url="http://service") as http:
        answer = await http.post("/api/leases/regcase:export", json={"candidate": "a", "ttl_ms": 15_000})
    assert answer.json()["token"]["epoch"] == 1
    await names["leases"].close()


async def test_marks_that_nobody_uses_are_cleared_away(make_client: MakeClient, database: Database) -> None:
    then, *later = snippets("receiver.md", "sql")
    client = make_client()
    for domain in ("unused", "used", "led-anew"):
        await client.statuses(token(3, 1, domain=domain))
    _run(database, then)
    await client.statuses(token(4, 1, domain="used"))
    await client.statuses(token(3, 2, domain="new"))
    _run(database, later[0] if isinstance(database, Sqlite) else later[1])
    left = database.query("SELECT domain FROM tabhelm_marks ORDER BY domain")
    assert left == [("new",), ("used",)]
    assert database.query("SELECT count(*) FROM tabhelm_streams") == [(2,)]
    assert (await client.batch(token(3, 9, domain="used", owner="old"))).status_code == 409
    assert await client.statuses(token(4, 1, domain="led-anew"), operation("a")) == ["committed"]


def _run(database: Database, statements: str) -> None:
    if isinstance(database, Sqlite):
        connection = sqlite3.connect(database.path)
        connection.executescript(statements)
        connection.close()
    else:
        with psycopg.connect(database.address, autocommit=True) as other:
            other.execute(statements.encode())
