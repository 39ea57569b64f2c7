"""A receiver inside a Starlette application, on SQLite, behind the application's own session cookie.

The browser sends the cookie by itself, so the page's queue needs no ``headers``: ``tab.queue("mutations", { endpoint:
"/api/operations", scope: `user:${userId}` })``. The scope keeps one user's work apart from the next one's, and ``owns``
refuses what a tab that has not heard of the next one's sign-in still sends with the new cookie: its queue pauses.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tabhelm.server import Denied, Effect, FencedReceiver, SqliteFenceStore

DATABASE = os.environ.get("DATABASE", "notes.db")


def create_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS notes (number INTEGER PRIMARY KEY, owner TEXT, text TEXT)")


def apply(effect: Effect, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO notes (owner, text) VALUES (?, ?)", (effect.subject, str(effect.payload)))


def authenticate(scope: MutableMapping[str, Any]) -> str:
    """The session middleware has been at work: a receiver in the routes sees what any other endpoint sees."""
    user: str | None = scope["session"].get("user")
    if user is None:
        raise Denied(401, "the session has ended")
    return user


def owns(subject: str, resource: str) -> bool:
    """Whether the scope that a queue writes for is that of whoever is signed in."""
    return resource.endswith(f":user:{subject}")


async def sign_in(request: Request) -> Response:
    request.session["user"] = (await request.json())["user"]  # after the password check of a real application
    return Response(status_code=204)


async def notes(request: Request) -> Response:
    connection = sqlite3.connect(DATABASE)
    try:
        query = "SELECT text FROM notes WHERE owner = ? ORDER BY number"
        return JSONResponse([text for (text,) in connection.execute(query, (request.session.get("user"),))])
    finally:
        connection.close()


receiver = FencedReceiver(apply, SqliteFenceStore(DATABASE, setup=create_tables), authenticate=authenticate, owns=owns)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await receiver.close()


app = Starlette(
    routes=[
        Route("/api/operations", receiver),
        Route("/api/sign-in", sign_in, methods=["POST"]),
        Route("/api/notes", notes),
    ],
    # Lax: no other site's page can send with this cookie. Over https, https_only=True as well.
    middleware=[Middleware(SessionMiddleware, secret_key=os.environ.get("SECRET", "change me"), same_site="lax")],
    lifespan=lifespan,
)
