"""All from one origin: the app's pages (``pages/``), the bundle (``dist/``) at ``/tabhelm/``, and the receiver.

``uvicorn whole_app:app``, with ``pages/index.html`` beside this file or ``PAGES`` and ``DIST`` naming the folders.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tabhelm.server import Effect, FencedReceiver, Reject, SqliteFenceStore

DATABASE = os.environ.get("DATABASE", "effects.db")


def create_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS cases (id TEXT PRIMARY KEY, title TEXT NOT NULL)")


def apply(effect: Effect, connection: sqlite3.Connection) -> None:
    title = effect.payload.get("title") if isinstance(effect.payload, dict) else None
    if not title:
        raise Reject("a case needs a title")
    connection.execute("REPLACE INTO cases VALUES (?, ?)", (effect.partition, title))


receiver = FencedReceiver(apply, SqliteFenceStore(DATABASE, setup=create_tables))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await receiver.close()


app = Starlette(
    routes=[
        Route("/api/operations", receiver),  # no Mount, which redirects to "/api/operations/"
        Mount("/tabhelm", StaticFiles(directory=os.environ.get("DIST", "dist"))),
        Mount("/", StaticFiles(directory=os.environ.get("PAGES", "pages"), html=True)),
    ],
    lifespan=lifespan,
)
