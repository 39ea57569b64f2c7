"""A receiver in front of another ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tabhelm.server.asgi import Receive, Scope, Send
from tabhelm.server.receiver import FencedReceiver

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class FencedReceiverMiddleware:
    """Answers one path with a receiver, and hands everything else to ``app``. Closes the receiver when ``app`` ends.

    Starlette and FastAPI: ``app.add_middleware(FencedReceiverMiddleware, receiver=receiver, path="/api/operations")``.
    What authenticates for the receiver must stand outside of it: there, middleware added *later*.
    """

    def __init__(self, app: App, receiver: FencedReceiver[Any], path: str = "/api/operations") -> None:
        if not path.startswith("/"):
            raise ValueError(f"path {path!r} is not valid: it begins with /")
        self._app = app
        self._receiver = receiver
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and _path_inside(scope) == self._path:
            await self._receiver(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, self._closing(send))
        else:
            await self._app(scope, receive, send)

    def _closing(self, send: Send) -> Send:
        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self._receiver.close()
            await send(message)

        return sending


def _path_inside(scope: Scope) -> str:
    """The path without that of the application that this one is mounted in."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
