"""The demo's web application: pages, bundle, receiver, and what tests ask it. Loopback only; nobody has to sign in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tabhelm.server import FencedReceiver, SqliteFenceStore
from tabhelm_build.demo_effects import apply, read_cases, read_effects, read_overview, set_up
from tabhelm_build.demo_faults import FaultyReceiver

ROOT = Path(__file__).resolve().parents[2]
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'; "
    "style-src 'self'; img-src 'self'"
)
DEMO = ROOT / "web" / "demo"
_NO_CACHE = "no-cache"  # kept, but asked about each time; "no-store" would keep pages out of the back/forward cache
_NEWEST = 30
"""How many accepted effects the demo shows."""
_AN_HOUR = "public, max-age=3600"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".mts": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".ts": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".zip": "application/zip",
}


async def demo_app(database: Path, dist: Path | None = None, second_bundle: Path | None = None) -> Starlette:
    """The application over one database file; await it in the loop that serves it. Without bundles it serves the rest.

    The database is opened at once, so that a file that cannot be used is told at the start. ``state.break_off`` ends
    the requests that wait because of a fault.
    """
    store = SqliteFenceStore(database, setup=set_up)
    await store.run(lambda transaction: None)
    receiver = FencedReceiver(apply, store)
    faulty = FaultyReceiver(receiver)

    def effects(request: Request) -> Response:
        return _fresh(read_effects(database))

    def cases(request: Request) -> Response:
        return _fresh({"cases": read_cases(database)})

    def overview(request: Request) -> Response:
        totals = receiver.metrics.snapshot()["totals"]
        repeated, refused = totals["duplicate"], totals["stale"]
        return _fresh(
            {**read_overview(database, _NEWEST), "repeated": repeated, "refused": refused, **faulty.in_force()}
        )

    async def metrics(request: Request) -> Response:
        return _fresh(receiver.metrics.snapshot())

    async def requests(request: Request) -> Response:
        return _fresh(list(faulty.log))

    async def faults(request: Request) -> Response:
        if request.method == "POST":
            # Pages of other sites can send anything else without asking.
            if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return JSONResponse({"title": "Content-Type must be application/json"}, status_code=415)
            try:
                faulty.order(json.loads(await request.body() or b"{}"))
            except (ValueError, RecursionError) as error:
                return JSONResponse({"title": "These faults cannot be read", "detail": str(error)}, status_code=400)
        return _fresh(faulty.in_force())

    async def index(request: Request) -> Response:
        return _file(DEMO / "index.html")

    async def icon(request: Request) -> Response:
        return _file(DEMO / "icon.svg")

    async def service_worker(request: Request) -> Response:
        return Response(service_worker_script(), media_type="text/javascript", headers={"cache-control": _NO_CACHE})

    async def blank(request: Request) -> Response:
        page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{request.url.path[1:]}</title></html>'
        return HTMLResponse(page, headers={"cache-control": _NO_CACHE})

    routes: list[BaseRoute] = [
        Route("/", index),
        Route("/favicon.ico", icon),
        Route("/service-worker.js", service_worker),
        Route("/blank", blank),
        Route("/blank2", blank),
        Route("/api/operations", faulty),
        Route("/api/effects", effects),
        Route("/api/cases", cases),
        Route("/api/overview", overview),
        Route("/api/metrics", metrics),
        Route("/api/requests", requests),
        Route("/api/faults", faults, methods=["GET", "POST"]),
        Mount("/demo", _Files(directory=DEMO)),
    ]
    for path, bundle in (("/tabhelm", dist), ("/tabhelm2", second_bundle)):
        if bundle is not None:
            routes.append(Mount(path, _Files(directory=bundle)))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await receiver.close()

    app = Starlette(routes=routes, middleware=_MIDDLEWARE, lifespan=lifespan)
    app.state.break_off = faulty.break_off
    return app


def service_worker_script() -> str:
    """The demo's own service worker: the bundle's, told what to keep of the demo, and of which release that is."""
    paths = sorted(path for path in DEMO.iterdir() if path.is_file())
    release = hashlib.sha256()
    for path in paths:
        release.update(f"{path.name} {path.stat().st_size} ".encode())
        release.update(path.read_bytes())
    files = ["/", *(f"/demo/{path.name}" for path in paths if path.name != "index.html")]
    told = {"base": "/tabhelm/", "version": release.hexdigest()[:12], "files": files, "alone": True}
    kept = json.dumps(told, indent=2)
    return f'importScripts("/tabhelm/service-worker.js");\ntabhelmOffline({kept});\n'


class _StrictPolicy:
    """The policy on every answer: a worker obeys the one that its script came with."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff")]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, strict)


# Loopback alone is no wall: a site may give its own name our address (DNS rebinding).
_HOSTS = ["127.0.0.1", "localhost", "*.localhost"]
_MIDDLEWARE = [Middleware(_StrictPolicy), Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)]


class _Files(StaticFiles):
    """Files with media types that do not depend on the machine, and with the caching that a real host would use."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        return _described(response, Path(full_path))


def _file(path: Path) -> Response:
    return _described(FileResponse(path), path)


def _described(response: Response, path: Path) -> Response:
    changeless = path.parent.name == "pyodide" or path.suffix == ".whl" or path.name.startswith("snapshot")
    response.headers["cache-control"] = _AN_HOUR if changeless else _NO_CACHE
    if isinstance(response, FileResponse):
        # The gzipped snapshot is unpacked by the engine, not by the browser: no Content-Encoding.
        response.headers["content-type"] = _TYPES.get(path.suffix, "application/octet-stream")
        response.chunk_size = 2**20
    if path.name == "service-worker.js":
        response.headers["service-worker-allowed"] = "/"  # it lies in the bundle's folder, and may serve all pages
    return response


def _fresh(value: object) -> Response:
    # ASCII: a text with half a surrogate pair has no UTF-8 form, and must not hide all the others.
    return Response(json.dumps(value), media_type="application/json", headers={"cache-control": "no-store"})
