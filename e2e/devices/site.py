"""A site with users: its receiver and its lease service know who is signed in, by a cookie or by a bearer token.

What has a user's scope is that user's alone. The demo's pages and bundle are served beside them. A browser says which
device it is by a cookie, so that the network between one device and this server can be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tabhelm.server import Denied, Effect, FencedReceiver, LeaseService, SqliteFenceStore, SqliteLeaseStore
from tabhelm_build.demo_app import demo_app
from tabhelm_build.serving import in_thread

LEASES = "/api/leases"
RECEIVER = "/api/operations"


@dataclass
class DeviceSite:
    """``cut``: devices whose requests never arrive. ``kept_waiting``: those whose requests to the receiver are applied,
    and answered when they are taken out of it. ``asked``: ``(device, user, method, path)`` of what arrived for the
    receiver and the lease service. ``bearers``: whose bearer token is whose."""

    database: Path
    url: str = ""
    cut: set[str] = field(default_factory=set)
    kept_waiting: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str, str]] = field(default_factory=list)
    bearers: dict[str, str] = field(default_factory=dict)
    receivers: list[FencedReceiver[sqlite3.Connection]] = field(default_factory=list)

    def sign_in(self, user: str, device: str) -> str:
        """The URL of a page that signs this user in."""
        return f"{self.url}/sign-in?user={user}&device={device}"

    def sign_out(self) -> str:
        return f"{self.url}/sign-out"

    def effects(self) -> list[dict[str, Any]]:
        """The accepted effects in order, with the subject that the server took their sender for."""
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            rows = connection.execute("SELECT subject, op_id, payload, token FROM effects ORDER BY n").fetchall()
        return [
            {"subject": subject, "op_id": op_id, "payload": json.loads(payload), **json.loads(token)}
            for subject, op_id, payload, token in rows
        ]

    def totals(self) -> dict[str, int]:
        """The receiver's counters."""
        return {str(what): count for what, count in self.receivers[0].metrics.snapshot()["totals"].items()}

    def refused(self) -> int:
        """How many requests the receiver has refused for their token."""
        return self.totals()["stale"] + self.totals()["overtaken"]

    def requests(self, device: str, method: str, path: str) -> int:
        """How many of these have arrived."""
        return sum((each[0], each[2]) == (device, method) and each[3].startswith(path) for each in list(self.asked))


class _Users:
    """Lets nobody in who is not signed in, and nothing of a device that is cut off."""

    def __init__(self, app: ASGIApp, site: DeviceSite, closing: asyncio.Event) -> None:
        self._app = app
        self._site = site
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/api/"):
            device = _cookie(scope, "device")
            if device in self._site.cut:
                await self._closing.wait()  # nothing ever comes back
                return
            user = _signed_in(scope, self._site) or "nobody"
            self._site.asked.append((device, user, scope["method"], scope["path"]))
            if scope["path"] == RECEIVER:
                send = self._late(device, send)
        await self._app(scope, receive, send)

    def _late(self, device: str, send: Send) -> Send:
        async def answer(message: Message) -> None:
            while device in self._site.kept_waiting and not self._closing.is_set():
                await asyncio.sleep(0.02)
            await send(message)

        return answer


def _cookie(scope: Scope, name: str) -> str:
    cookies: SimpleCookie = SimpleCookie()
    for key, value in scope["headers"]:
        if key == b"cookie":
            cookies.load(value.decode("latin-1"))
    return cookies[name].value if name in cookies else ""


def _signed_in(scope: Scope, site: DeviceSite) -> str:
    for key, value in scope["headers"]:
        if key == b"authorization":
            return site.bearers.get(value.decode("latin-1").removeprefix("Bearer "), "")
    return _cookie(scope, "user")


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS effects (n INTEGER PRIMARY KEY, subject TEXT, op_id TEXT, payload TEXT, token TEXT)"
    )


def _apply(effect: Effect, connection: sqlite3.Connection) -> None:
    token = effect.token
    shown = {"domain": token.domain, "resource": token.resource, "epoch": token.epoch, "owner": token.owner_id}
    values = (effect.subject, effect.op_id, json.dumps(effect.payload), json.dumps(shown))
    connection.execute("INSERT INTO effects (subject, op_id, payload, token) VALUES (?, ?, ?, ?)", values)


async def _app(site: DeviceSite, bundle: Path, folder: Path, closing: asyncio.Event) -> ASGIApp:
    demo = await demo_app(folder / "demo.db", bundle)

    def authenticate(scope: Scope) -> str:
        user = _signed_in(scope, site)
        if not user:
            raise Denied(401, "sign in first")
        return user

    def owns(user: str, resource: str) -> bool:
        return ":user:" not in resource or resource.endswith(f":user:{user}")

    store = SqliteFenceStore(site.database, setup=_set_up)
    await store.run(lambda transaction: None)  # so that the table is there
    receiver = FencedReceiver(_apply, store, authenticate=authenticate, owns=owns)
    site.receivers.append(receiver)
    leases = LeaseService(SqliteLeaseStore(site.database), authenticate=authenticate)

    async def sign_in(request: Request) -> Response:
        page = HTMLResponse("<!doctype html><title>signed in</title>")
        for name in ("user", "device"):
            page.set_cookie(name, request.query_params[name], httponly=True, samesite="strict")
        return page

    async def sign_out(request: Request) -> Response:
        page = HTMLResponse("<!doctype html><title>signed out</title>")
        page.delete_cookie("user", httponly=True, samesite="strict")
        return page

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        yield
        await receiver.close()
        await leases.close()

    routes = [
        Route("/sign-in", sign_in),
        Route("/sign-out", sign_out),
        Route(RECEIVER, receiver),
        Mount(LEASES, leases),
        Mount("/", demo),
    ]
    return _Users(Starlette(routes=routes, lifespan=lifespan), site, closing)


@contextlib.contextmanager
def serve(bundle: Path) -> Iterator[DeviceSite]:
    """Serve on a free port until the block ends."""
    with tempfile.TemporaryDirectory(prefix="tabhelm-devices-") as name:
        site = DeviceSite(Path(name) / "site.db")
        with in_thread(lambda closing: _app(site, bundle, Path(name), closing)) as site.url:
            yield site
