"""The examples of docs/examples, each as it stands there; and the receiver inside other applications."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from receiver_kit import SQLITE, Client, operation, token
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from tabhelm.fencing.http_form import token_header
from tabhelm.server import FencedReceiverMiddleware

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def load(name: str, database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DATABASE", database)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """An application with its lifespan, as a web server runs it."""
    import asyncio

    said: asyncio.Queue[str] = asyncio.Queue()
    heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send(message: dict[str, Any]) -> None:
        await said.put(message["type"])

    lifespan = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, heard.get, send))
    await heard.put({"type": "lifespan.startup"})
    assert await said.get() == "lifespan.startup.complete"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://app") as http:
        yield http
    await heard.put({"type": "lifespan.shutdown"})
    assert await said.get() == "lifespan.shutdown.complete"
    await lifespan


async def send(
    http: httpx.AsyncClient, url: str, shown: Any, *operations: dict[str, Any], **more: str
) -> httpx.Response:
    return await http.post(url, json={"operations": operations}, headers={"Fencing-Token": token_header(shown), **more})


def statuses(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [result["status"] for result in answer.json()["results"]]


async def test_plain_asgi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("plain_asgi", str(tmp_path / "cases.db"), monkeypatch)
    async with running(example.app) as http:
        case = operation("1", {"id": "42", "title": "Pump 7"})
        assert (await send(http, "/", token(), case)).status_code == 401
        ada, bob = ({"Authorization": f"Bearer {example.KEYS[name]}"} for name in ("ada", "bob"))
        assert statuses(await send(http, "/", token(1, 1), case, **ada)) == ["committed"]
        assert statuses(await send(http, "/", token(1, 2), case, operation("2", "?"), **ada)) == [
            "duplicate",
            "rejected",
        ]
        assert statuses(await send(http, "/", token(1, 1), case, **bob)) == ["committed"], "another subject"


async def test_starlette(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "notes.db"
    example = load("starlette_app", str(database), monkeypatch)
    async with running(example.app) as http:
        adas, bobs = (
            {seq: token(1, seq, resource=f"notes:offline-queue:mutations:user:{name}") for seq in (1, 2)}
            for name in ("ada", "bob")
        )
        assert (await send(http, "/api/operations", adas[1], operation("1", "hello"))).status_code == 401
        await http.post("/api/sign-in", json={"user": "ada"})
        assert statuses(await send(http, "/api/operations", adas[1], operation("1", "hello"))) == ["committed"]
        assert (await http.get("/api/notes")).json() == ["hello"]
        await http.post("/api/sign-in", json={"user": "bob"})
        refused = await send(http, "/api/operations", adas[2], operation("2", "ada's, sent with bob's cookie"))
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:tabhelm:not-owner")
        assert statuses(await send(http, "/api/operations", bobs[1], operation("1", "hi"))) == ["committed"]
        assert (await http.get("/api/notes")).json() == ["hi"]
    assert not Path(f"{database}-wal").exists(), "the receiver was closed with its application"


async def test_the_whole_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file, text in (("DIST", "tabhelm.mjs", "export {};"), ("PAGES", "index.html", "<title>cases</title>")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / file).write_text(text)
        monkeypatch.setenv(name, str(folder))
    example = load("whole_app", str(tmp_path / "effects.db"), monkeypatch)
    async with running(example.app) as http:
        assert (await http.get("/")).text == "<title>cases</title>"
        assert (await http.get("/tabhelm/tabhelm.mjs")).headers["content-type"].startswith("text/javascript")
        sent = [operation("1", {"title": "Pump 7"}, "42"), operation("2", "no case", "43")]
        assert statuses(await send(http, "/api/operations", token(), *sent)) == ["committed", "rejected"]
    assert not (tmp_path / "effects.db-wal").exists(), "the receiver was closed with its application"


async def test_fastapi(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("fastapi_app", postgres_database, monkeypatch)
    async with running(example.app) as http:
        assert (await send(http, "/api/operations", token(), operation("1", {}))).status_code == 401
        http.headers["Authorization"] = "Bearer ada's access token"
        sent = [
            operation("1", {"kind": "add", "id": "42", "title": "Pump 7"}, "42"),
            operation("2", {"kind": "rename", "id": "42", "title": "Pump 8"}, "42"),
            operation("3", {"kind": "rename", "id": "43", "title": "Pump 9"}, "43"),
        ]
        assert statuses(await send(http, "/api/operations", token(), *sent)) == ["committed", "committed", "rejected"]
        assert (await http.get("/api/cases")).json() == [{"id": "42", "title": "Pump 8", "changed_by": "ada"}]
        metrics = await http.get("/metrics")
        assert 'tabhelm_receiver_accepted_total{resource="app:queue"} 2\n' in metrics.text
        http.headers["Authorization"] = ""
        assert (await http.get("/metrics")).status_code == 401
        assert (await send(http, "/api/operations", token(1, 2))).status_code == 401
    assert example.receiver._store._pool is None, "the receiver was closed with its application"


async def test_a_page_of_another_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/receiver.md says: what a browser asks beforehand is allowed, and the page reads what it has to know."""
    example = load("plain_asgi", str(tmp_path / "cases.db"), monkeypatch)
    app = CORSMiddleware(
        example.app,
        allow_origins=["https://app.example"],
        allow_methods=["POST", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "Fencing-Token", "Idempotency-Key"],
        expose_headers=["Retry-After", "Tabhelm-Retention"],
    )
    wanted = "authorization,content-type,fencing-token,idempotency-key"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    async with running(app) as http:
        for origin, status in (("https://app.example", 200), ("https://evil.example", 400)):
            assert (await http.options("/", headers={"Origin": origin, **asked})).status_code == status
        key = {"Authorization": f"Bearer {example.KEYS['ada']}", "Origin": "https://app.example"}
        for seq, expected in ((1, 200), (1, 409)):
            answer = await send(http, "/", token(1, seq), operation("1", {"id": "42", "title": "Pump 7"}), **key)
            assert answer.status_code == expected
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            assert answer.headers["access-control-expose-headers"] == "Retry-After, Tabhelm-Retention"


# -- as middleware -----------------------------------------------------------------------------------------------------


async def hello(request: Request) -> Response:
    return PlainTextResponse(f"hello {request.url.path}")


@SQLITE
async def test_middleware_answers_its_path_alone(client: Client) -> None:
    middleware = Middleware(FencedReceiverMiddleware, receiver=client.receiver, path="/api/operations")
    app = Starlette(routes=[Route("/{path:path}", hello, methods=["GET", "POST"])], middleware=[middleware])
    async with running(app) as http:
        assert statuses(await send(http, "/api/operations", token(), operation("a"))) == ["committed"]
        for path in ("/", "/api/operations/", "/api/operations/x", "/API/operations"):
            assert (await http.post(path)).text == f"hello {path}"
        assert (await http.get("/api/operations")).status_code == 405
        assert (await http.get("/api/operations?x=1")).status_code == 405
    assert not Path(f"{client.database.address}-wal").exists(), "closed with the application"


@SQLITE
async def test_middleware_of_a_mounted_application(client: Client) -> None:
    middleware = Middleware(FencedReceiverMiddleware, receiver=client.receiver, path="/operations")
    inner = Starlette(routes=[Route("/hello", hello)], middleware=[middleware])
    async with running(Starlette(routes=[Mount("/api", inner)])) as http:
        assert statuses(await send(http, "/api/operations", token(), operation("a"))) == ["committed"]
        assert (await http.get("/api/hello")).text == "hello /api/hello"
        assert (await http.post("/operations")).status_code == 404


@SQLITE
async def test_middleware_leaves_web_sockets_alone(client: Client) -> None:
    seen: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    app = FencedReceiverMiddleware(inner, client.receiver, "/ws")
    await app({"type": "websocket", "path": "/ws"}, None, None)  # type: ignore[arg-type]
    assert seen == ["websocket"]


@SQLITE
async def test_a_sender_that_goes_away_is_no_failure_of_the_application_around(client: Client) -> None:
    async def around(request: Request, call_next: Any) -> Response:
        answer: Response = await call_next(request)
        return answer

    app = Starlette()
    app.add_middleware(FencedReceiverMiddleware, receiver=client.receiver, path="/operations")
    app.add_middleware(BaseHTTPMiddleware, dispatch=around)
    heard = iter([{"type": "http.request", "body": b"{", "more_body": True}])
    said: list[Any] = []

    async def receive() -> Any:
        return next(heard, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        said.append(message)

    headers = [(b"content-type", b"application/json"), (b"fencing-token", token_header(token()).encode())]
    scope = {"type": "http", "method": "POST", "path": "/operations", "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    assert said[0]["status"] == 400


@SQLITE
def test_middleware_refuses_a_path_that_is_none(client: Client) -> None:
    with pytest.raises(ValueError, match="begins with /"):
        FencedReceiverMiddleware(client.receiver, client.receiver, "api")
