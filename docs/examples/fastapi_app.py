"""A receiver in front of a FastAPI application, on PostgreSQL, behind the application's own bearer tokens.

``FencedReceiverMiddleware`` answers one path; everything else is FastAPI's. What authenticates for both stands outside
of it: middleware that is added later. Metrics for Prometheus are at ``/metrics``.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import psycopg
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.routing import Route

from tabhelm.server import Denied, Effect, FencedReceiver, FencedReceiverMiddleware, PostgresFenceStore, Reject

DATABASE = os.environ.get("DATABASE", "dbname=inspections")
USERS = {"ada's access token": "ada"}  # a real application asks its identity provider, or checks a signature


def create_tables(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS cases (id text PRIMARY KEY, title text NOT NULL, changed_by text)")


def apply(effect: Effect, connection: psycopg.Connection[Any]) -> None:
    match effect.payload:
        case {"kind": "add", "id": str(case), "title": str(title)}:
            connection.execute(
                "INSERT INTO cases VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (case, title, effect.subject)
            )
        case {"kind": "rename", "id": str(case), "title": str(title)}:
            changed = connection.execute(
                "UPDATE cases SET title = %s, changed_by = %s WHERE id = %s", (title, effect.subject, case)
            )
            if not changed.rowcount:
                raise Reject("there is no such case", final=False)
        case _:
            raise Reject("this server does not know such an operation")


def authenticate(scope: MutableMapping[str, Any]) -> str:
    user: str | None = scope["state"].get("user")
    if user is None:
        raise Denied(401, "sign in again")
    return user


receiver = FencedReceiver(apply, PostgresFenceStore(DATABASE, setup=create_tables), authenticate=authenticate)
app = FastAPI(routes=[Route("/metrics", receiver.metrics.app)])
app.add_middleware(FencedReceiverMiddleware, receiver=receiver, path="/api/operations")


@app.middleware("http")
async def who_is_it(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Added last, so it comes first: it knows the user before the receiver and before every endpoint."""
    kind, _, access = request.headers.get("authorization", "").partition(" ")
    request.state.user = USERS.get(access) if kind == "Bearer" else None
    if request.state.user is None and request.url.path == "/metrics":
        return JSONResponse({"detail": "Metrics name resources: not for everybody"}, 401)
    return await call_next(request)


@app.get("/api/cases")
def cases(request: Request) -> list[dict[str, str | None]]:
    with psycopg.connect(DATABASE) as connection:
        rows = connection.execute("SELECT id, title, changed_by FROM cases ORDER BY id").fetchall()
    return [{"id": row[0], "title": row[1], "changed_by": row[2]} for row in rows]
