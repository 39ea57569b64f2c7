"""A real ASGI application in the simulated network: the lease service, above all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote, urlsplit

from tabhelm.ports.http import HttpAnswer
from tabhelm.simulated.http import Handler, HttpRequest

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def asgi_handler(app: App) -> Handler:
    """What ``Network.route`` takes. That its sender gave up is not noticed by the application."""

    async def handle(request: HttpRequest) -> HttpAnswer:
        parts = urlsplit(request.url)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
        scope: Message = {
            "type": "http",
            "method": request.method,
            "path": unquote(parts.path),
            "raw_path": parts.path.encode("latin-1"),
            "query_string": parts.query.encode("latin-1"),
            "headers": headers,
        }
        bodies = [(request.body or "").encode()]
        answered: list[Message] = []

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop()}
            never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            return await never

        async def send(message: Message) -> None:
            answered.append(message)

        await app(scope, receive, send)
        start, *rest = answered
        said = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        return HttpAnswer(start["status"], said, b"".join(part["body"] for part in rest).decode())

    return handle
