"""The demo's application with more files beside it: pages that run Python themselves, on the origin of the bundle."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from tabhelm_build.demo_app import POLICY, demo_app
from tabhelm_build.serving import in_thread

ROOT = Path(__file__).resolve().parents[2]
PYSCRIPT = ROOT / "web" / "node_modules" / "@pyscript" / "core" / "dist"
_TYPES = {".html": "text/html; charset=utf-8", ".py": "text/plain; charset=utf-8", ".toml": "text/plain; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class File:
    """One more file of the site, and the policy it is served under (the strict one, unless said otherwise)."""

    text: str
    policy: str = POLICY


class PythonSite:
    """``url`` and what tests ask of the receiver."""

    def __init__(self, url: str, wheel: str, files: dict[str, File]) -> None:
        self.url = url
        self._files = files
        self.wheel = wheel
        """Where our wheel is served, a path of this origin."""

    def put(self, path: str, file: File | str) -> None:
        """Serve one more file, or another in its place."""
        self._files[path] = file if isinstance(file, File) else File(file)

    async def effects(self) -> list[dict[str, Any]]:
        """The accepted effects in order."""
        return await asyncio.to_thread(self._get, "/api/effects")  # type: ignore[no-any-return]

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def serve(dist: Path, folder: Path, files: Mapping[str, File | str] = {}) -> Iterator[PythonSite]:
    """Serve until the block ends. ``folder`` is for the receiver's database; ``files`` by their path."""
    given = {path: file if isinstance(file, File) else File(file) for path, file in files.items()}
    wheel = next(dist.glob("tabhelm-*.whl")).name

    async def app(closing: asyncio.Event) -> ASGIApp:
        return _Beside(await demo_app(folder / "effects.db", dist), given)

    with in_thread(app) as url:
        yield PythonSite(url, f"/tabhelm/{wheel}", given)


class _Beside:
    """Our files first, then the demo."""

    def __init__(self, app: ASGIApp, files: Mapping[str, File]) -> None:
        self._app = app
        self._files = files
        self._pyscript = StaticFiles(directory=PYSCRIPT) if PYSCRIPT.is_dir() else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        file = self._files.get(path)
        if scope["type"] == "http" and file is not None:
            kind = _TYPES.get(Path(path).suffix, "text/javascript; charset=utf-8")
            headers = {"content-security-policy": file.policy, "cache-control": "no-cache", "content-type": kind}
            await Response(file.text, headers=headers)(scope, receive, send)
        elif scope["type"] == "http" and path.startswith("/pyscript/") and self._pyscript is not None:
            inner = {**scope, "path": path.removeprefix("/pyscript"), "root_path": ""}
            await self._pyscript(inner, receive, send)
        elif scope["type"] == "http":
            # The demo answers to its own names only; here it is asked by others.
            headers = [(name, b"localhost" if name == b"host" else value) for name, value in scope["headers"]]
            await self._app({**scope, "headers": headers}, receive, send)
        else:
            await self._app(scope, receive, send)
